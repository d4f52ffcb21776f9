# Everything that a step sweeps over: gradients, weights and state of the parameters of one optimizer.
from __future__ import annotations

from itertools import repeat
from operator import is_
from typing import NamedTuple

from torch import Tensor

from trainmon.base.rows import BEFORE_STEP, NO_SERIES
from trainmon.torch.wrappers.contract import InPieces, Parameter

FORWARD_CHANGES = 512  # of a row


class StateOrder(NamedTuple):
    """Where in an optimizer's state the tensors of a sweep are. Not the tensors: they may be moved
    elsewhere, to free a device's memory, and nothing here is to hold what they were."""

    parameters: list[int]  # ids of what the state is by, in its order
    size: int  # how many keys they have together
    stepped: list[Tensor]  # whose gradients say that the step was theirs
    groups: dict[int, tuple[list, list, list]]  # by chunk: series, place in that order, key


class Sweeps:
    """The parameters of one optimizer, ready to be read in one call per kind."""

    def __init__(self, adapter, registry, steps, parameters: list[Parameter]):
        self.adapter, self.registry = adapter, registry
        self.steps, self.parameters = steps, parameters
        self.lists: dict[str, list] = {}  # kind -> [(wrapper, parameters, series, tensors, flags)]
        self.state_kinds: dict[tuple, int] = {}  # (id of parameter, key) -> series
        for kind in ("grad_reduced", "param_origin", "param_updated"):
            if kind in adapter.kinds:
                self.lists[kind] = self._list(kind)
        self.trains = [p.tensor.requires_grad for p in parameters]
        self.tensors = [p.tensor for p in parameters]
        held = [(place, p.tensor) for p in parameters for place in p.places]
        self.places, self.placed = [place for place, _ in held], [tensor for _, tensor in held]
        self.hooked = [t for t in self.tensors if id(t) in registry.hooked]
        self.contents = [t._cdata for t in self.hooked]
        self.turn = 0
        self.order: StateOrder | None = None
        self.has_order = True  # what the optimizer keeps is what rows are made of
        self.held = self._held()

    def _held(self) -> int:
        """Another number when the optimizer was given other tensors."""
        return sum(map(id, self.registry.stepped_by(self.steps.optimizer)))

    def _list(self, kind: str) -> list:
        lists = []
        for chunk, wrapper in enumerate(self.adapter.wrappers):
            mine = [
                p
                for p in self.parameters
                if p.selected
                and p.chunk == chunk
                and (kind != "grad_reduced" or p.tensor.requires_grad)
                and self.adapter.selection.takes_parameter(p, kind)
            ]
            if mine:
                if kind == "param_origin":
                    changed = [p for p in mine if p.renormalised or p.stepped_beside]
                    mine = [p for p in mine if not (p.renormalised or p.stepped_beside)]
                    lists += [(wrapper, changed, [], [], FORWARD_CHANGES)] if changed else []
                lists += [(wrapper, mine, [], [], 0)] if mine else []
        return lists

    def list_weights_again(self) -> None:
        """To be called when `stepped_beside` of a parameter has changed."""
        if "param_origin" in self.lists:
            self.lists["param_origin"] = self._list("param_origin")

    def check(self) -> None:
        """Notices parameters that were re-assigned, copied, thawed or given to the optimizer, and modules
        that came or went."""
        if self.held != self._held() or self.registry.tree.is_changed() or self._is_other():
            self.registry.find_again()
        else:
            self._look_at_hooks()
        self.registry.tell_lost()

    def _is_other(self) -> bool:
        if self._is_unchanged():
            return False
        wrappers, lost_hook = self.adapter.wrappers, self.registry.lost_hook
        for parameter, trained in zip(self.parameters, self.trains, strict=True):
            if (not parameter.is_held and wrappers[parameter.chunk].is_replaced(parameter)) or (
                parameter.tensor.requires_grad is not trained or lost_hook(parameter.tensor)
            ):
                return True
        return False

    def _look_at_hooks(self) -> None:
        """Whether somebody emptied the hooks of a module or a parameter. One of each at a step, in turn:
        this costs the same for every model."""
        adapter = self.adapter
        module = adapter.handles.emptied_in_turn()
        if module is not None:
            adapter.coverage.hooks_emptied(module)
        if not self.hooked:
            return
        self.turn = (self.turn + 1) % len(self.hooked)
        tensor = self.hooked[self.turn]
        hooked = self.registry.hooked.get(id(tensor))
        if hooked is not None and hooked.is_emptied():
            adapter.coverage.hooks_emptied(tensor)

    def _is_unchanged(self) -> bool:
        """Whether nothing is other than it was. In loops that run in C: this is done at every step."""
        try:
            held = [owner._parameters[key] for owner, key in self.places]
        except KeyError:  # removed
            return False
        return (
            all(map(is_, held, self.placed))
            and [t.requires_grad for t in self.tensors] == self.trains
            and [t._cdata for t in self.hooked] == self.contents
        )

    def read(self, kind: str, attribute: str | None = None, scale: Tensor | None = None) -> None:
        """`scale`: what is read is divided by it."""
        optimizer = self.steps.optimizer
        for wrapper, parameters, series, tensors, flags in self.lists.get(kind, ()):
            flags |= wrapper.flags(kind)
            is_whole = isinstance(wrapper, InPieces) and wrapper.has_no_pieces()
            values = None if is_whole else wrapper.values(kind, parameters, optimizer)
            if values is not None:
                self._sweep_found(kind, parameters, values, flags, scale)
                continue
            if not series:
                held = [p for p in parameters if p.stepped is not None]
                series += [self.registry.series_of(p, kind, p.stepped) for p in held]
                tensors += [p.stepped for p in held]
            if attribute == "grad" and wrapper.main_grad and not is_whole:
                gradients = [getattr(t, "main_grad", t.grad) for t in tensors]
                held = [(s, g) for s, g in zip(series, gradients) if g is not None]
                series, gradients = [s for s, _ in held], [g for _, g in held]
                self.sweep(series, *wrapper.locals(gradients), flags, scale)
                continue
            self.sweep(series, *wrapper.locals(tensors, attribute), flags, scale)

    def read_given(self, kind: str, found: list[tuple]) -> None:
        """The same of values that somebody gave: (parameter, its value)."""
        for wrapper, parameters, *_ in self.lists.get(kind, ()):
            mine = [(p, value) for p, value in found if any(p is one for one in parameters)]
            if mine:
                self._sweep_found(kind, *map(list, zip(*mine)), wrapper.flags(kind))

    def _sweep_found(self, kind: str, parameters: list, values: list, flags: int, scale=None):
        series_of = self.registry.series_of
        found = [(p, v) for p, v in zip(parameters, values, strict=True) if v is not None]
        series = [series_of(parameter, kind, value) for parameter, value in found]
        self.sweep(series, [value for _, value in found], None, flags, scale)

    def read_state(self) -> None:
        """Every tensor of the parameter's shape that the optimizer keeps for it, under its key.

        After a step, a parameter without a gradient has the state that the step before made: no row.
        """
        if not self.adapter.wants_state:
            return
        flags = BEFORE_STEP if self.adapter.state_before else 0
        groups = self._ordered_state() or self._found_state()
        for chunk, (series, tensors) in groups.items():
            self.sweep(series, *self.adapter.wrappers[chunk].locals(tensors), flags)

    def _ordered_state(self) -> dict | None:
        """By chunk (series, tensors), if the optimizer's state has the order of the step before and
        each parameter a gradient. In loops that run in C, as above."""
        order, state = self.order, self.steps.optimizer.state
        if order is None or list(map(id, state)) != order.parameters:
            return None
        entries = list(state.values())
        gradients = () if self.adapter.state_before else [t.grad for t in order.stepped]
        if sum(map(len, entries)) != order.size or any(map(is_, gradients, repeat(None))):
            return None
        groups = {}
        for chunk, (series, places, keys) in order.groups.items():
            tensors = list(map(dict.get, map(entries.__getitem__, places), keys))
            if not all(map(isinstance, tensors, repeat(Tensor))):
                return None
            groups[chunk] = series, tensors
        return groups

    def _found_state(self) -> dict:
        """The same, looked up parameter by parameter."""
        groups: dict = {}
        before, optimizer = self.adapter.state_before, self.steps.optimizer
        self.order = None
        ordered: dict = {}
        stepped, in_order = [], self.has_order
        place_of = {id(tensor): place for place, tensor in enumerate(optimizer.state)}
        for parameter in self.parameters:
            if not (parameter.selected and parameter.owned):
                continue
            wrapper = self.adapter.wrappers[parameter.chunk]
            state = None
            if before or wrapper.has_gradient(parameter):
                state = wrapper.state(parameter, optimizer)
            if not state:
                in_order = False
                continue
            stepped.append(parameter.stepped)
            own = optimizer.state.get(parameter.stepped) if in_order else None
            for key, value in state.items():
                series = self.state_kinds.get((id(parameter), key))
                if series is None:
                    series = self._state_series(parameter, key, value)
                in_order = in_order and value is not None
                if series != NO_SERIES and isinstance(value, Tensor):
                    group = groups.setdefault(parameter.chunk, ([], []))
                    group[0].append(series)
                    group[1].append(value)
                    if in_order and (type(own) is not dict or own.get(key) is not value):
                        in_order = self.has_order = False
                    places = ordered.setdefault(parameter.chunk, (group[0], [], []))
                    places[1].append(place_of.get(id(parameter.stepped)))
                    places[2].append(key)
        if in_order and all(type(entry) is dict for entry in optimizer.state.values()):
            size = sum(map(len, optimizer.state.values()))
            self.order = StateOrder(list(place_of), size, stepped, ordered)
        return groups

    def _state_series(self, parameter: Parameter, key, value) -> int:
        adapter, series = self.adapter, NO_SERIES
        if value is not None:
            kind = str(key)
            if isinstance(value, Tensor) and kind != "step" and adapter.wants(kind):
                if self._has_its_shape(value, parameter):
                    adapter.wrappers[parameter.chunk].lies_as(parameter, kind, value)
                    series = self.registry.series_of(parameter, kind, value)
                    adapter.coverage.cover(kind)
                else:
                    adapter.coverage.not_covered(kind, "not of the parameter's shape")
            self.state_kinds[id(parameter), key] = series
        return series

    def _has_its_shape(self, value: Tensor, parameter: Parameter) -> bool:
        if value.shape == parameter.stepped.shape:
            return True
        wrapper = self.adapter.wrappers[parameter.chunk]
        found = wrapper.values("param_updated", [parameter], self.steps.optimizer)
        if found is None:
            found, _ = wrapper.locals([parameter.stepped])
        return found[0] is not None and value.shape == found[0].shape

    def sweep(self, series, tensors: list, attribute: str | None, flags: int, scale=None) -> None:
        """Rows of the open window. What is None has none."""
        adapter, steps = self.adapter, self.steps
        missed = adapter.sweep(adapter.handle, series, tensors, attribute, flags, scale)
        if missed:
            accum = adapter.core.accum(steps.index)
            for i in missed:
                value = tensors[i] if attribute is None else getattr(tensors[i], attribute)
                adapter.late.add(series[i], value, steps.window, accum, 0, flags, scale)
