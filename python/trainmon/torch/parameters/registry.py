# Which parameters are watched, whose steps they follow, which tensors are hooked for them.
from __future__ import annotations

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trainmon.base.names import listed
from trainmon.base.rows import NO_SERIES
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.hook import AfterAccumulation
from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.parameters.accumulated import Accumulated, CallAfter, OfDTensor, Reduced
from trainmon.torch.parameters.main_grad import InMainGrad
from trainmon.torch.parameters.microsteps import Contribution, OnGradient
from trainmon.torch.parameters.momentum import Directions, Updates
from trainmon.torch.parameters.step_formulas import StepFormulas
from trainmon.torch.parameters.sweeps import Sweeps
from trainmon.torch.wrappers.contract import (
    Parameter,
    has_post_accumulate_hook,
    parameters_under,
)
from trainmon.torch.wrappers.plain import Plain
from trainmon.torch.wrappers.tree import Tree


class Registry:
    """The parameters of one adapter. Hooks follow the names when the tensors behind them change."""

    def __init__(self, adapter):
        self.adapter = adapter
        self.handles, self.part = adapter.handles, adapter.gradients
        self.hooked: dict[int, AfterAccumulation] = {}  # by id of tensor
        self.inner: set[int] = set()  # those of tensors that a framework makes of parameters
        self.contributions: dict[int, OnGradient] = {}
        self.are_shared = False  # weights in memory that other processes may write
        self.probe: Parameter | None = None  # one that stands for all, to see at once when they go
        self.tree = Tree(adapter.roots, adapter.names)
        self.is_plain = all(isinstance(wrapper, Plain) for wrapper in adapter.wrappers)
        self.loaded = None  # tells of states that are loaded
        self.new: set[int] = set()  # ids of tensors that came, until a step says who steps them

    def install(self) -> None:
        self._own()
        self._hook()

    def _own(self) -> None:
        adapter = self.adapter
        owners: dict[int, int] = {}
        shared: set[int] = set()
        for steps in adapter.steps:
            for tensor in self.stepped_by(steps.optimizer):
                if owners.setdefault(id(tensor), steps.index) != steps.index:
                    shared.add(id(tensor))
                owners[id(tensor)] = steps.index
        self.are_shared = any(
            p.tensor.device.type == "cpu" and p.tensor.is_shared() for p in adapter.parameters
        )
        if self.are_shared:
            why = "they are in shared memory, which other processes may write"
            adapter.coverage.not_covered("gap and update of weights", why)
        for parameter in adapter.parameters:
            parameter.stepped = adapter.wrappers[parameter.chunk].stepped(parameter)
            owner = owners.get(id(parameter.stepped), owners.get(id(parameter.tensor)))
            parameter.owned = owner is not None
            parameter.optimizer = adapter.clock.index if owner is None else owner
            parameter.selected = adapter.selection.parameter(parameter)
            parameter.label = adapter.selection.label(parameter)
            parameter.stepped_beside |= not shared.isdisjoint(
                (id(parameter.stepped), id(parameter.tensor))
            )
        if shared:
            what = f"{len(shared)} parameters in the steps of an optimizer"
            adapter.coverage.not_covered(what, "a later optimizer of watch() has them, too")
            names = listed([p.name for p in adapter.parameters if p.stepped_beside])
            adapter.coverage.not_covered(f"gap of {names}", "several optimizers step them")
        self.probe = next((p for p in adapter.parameters if p.owned), None)

    def stepped_by(self, optimizer) -> list[Tensor]:
        """What a torch optimizer updates."""
        found = (wrapper.stepped_by(optimizer) for wrapper in self.adapter.wrappers)
        held = [t for group in optimizer.param_groups for t in group["params"]]
        return next((tensors for tensors in found if tensors is not None), held)

    def _hook(self) -> None:
        adapter = self.adapter
        for chunk, wrapper in enumerate(adapter.wrappers):
            mine = [p for p in adapter.parameters if p.chunk == chunk]
            if has_post_accumulate_hook():
                wrapper.hook_gradients(mine, self)
        for steps in adapter.steps:
            mine = [p for p in adapter.parameters if p.optimizer == steps.index]
            steps.sweeps = Sweeps(adapter, self, steps, mine)
            if "mg_direction" in adapter.kinds:
                steps.directions = Directions(adapter, self, steps, mine)
            if "update_ratio" in adapter.kinds:
                steps.updates = Updates(adapter, self, steps, mine)
            if "update" in adapter.kinds and not adapter.is_elsewhere:
                steps.formulas = StepFormulas(adapter, self, steps, mine)

    def unreduced(self, parameter: Parameter, tensor: Tensor, placed: bool = False) -> bool:
        """Hooks the tensor that a parameter's gradient accumulates into before it is reduced. False:
        not yet, it does not require grad. `placed`: each gradient says how it lies (placed_as)."""
        if id(tensor) not in self.hooked:
            if not tensor.requires_grad:
                return False
            series = self._unreduced_series(parameter, tensor)
            keeps = tensor is parameter.tensor and self._wrapper(parameter).keeps_gradients
            apart = self._wrapper(parameter).main_grad and hasattr(tensor, "main_grad")
            kind = InMainGrad if apart else OfDTensor if placed else Accumulated
            hook = kind(self.adapter, parameter.optimizer, series, keeps)
            if kind is OfDTensor:
                hook.parameter = parameter
            self._after_accumulation(tensor, hook)
            if tensor is not parameter.tensor:
                self.inner.add(id(tensor))
            if parameter.selected and "grad_micro" in self.adapter.kinds:
                series = self.series_of(parameter, "grad_micro", tensor)
                hook = Contribution(
                    self.adapter, parameter.optimizer, series, parameter if placed else None
                )
                self.contributions[id(tensor)] = OnGradient(tensor, hook, self.adapter.timed(hook))
        parameter.hooked = True
        return True

    def call_after(self, tensor: Tensor, find, optimizer: int = 0) -> None:
        """Has find() called whenever a gradient was added to the tensor's: it gives (parameter, value)
        of the gradients before reduction that are known then. The optimizer is the parameters'."""
        known = self.hooked.get(id(tensor))
        if known is not None:
            known.hook.find, known.hook.optimizer = find, optimizer
        elif tensor.requires_grad:
            self._after_accumulation(tensor, CallAfter(self.adapter, optimizer, find))
            self.inner.add(id(tensor))

    def report(self, parameter: Parameter, value: Tensor, call: int = 0) -> None:
        """The parameter's gradient before reduction: `value`, local, in the backward under way or after
        the last one of this step. To be called where a framework has it; nothing is kept."""
        adapter = self.adapter
        if not self.part.on:
            return
        try:
            parameter.hooked = True
            steps = adapter.steps[parameter.optimizer]
            if current_task() != IDLE:
                steps.enter_backward()
            if steps.recording and parameter.selected and "grad_unreduced" in adapter.kinds:
                series = self.series_of(parameter, "grad_unreduced", value)
                place = steps.window, adapter.core.accum(steps.index), call
                adapter.row(series, value, *place, steps.flags)
        except Exception as error:
            self.part.failed(error)

    def _wrapper(self, parameter: Parameter):
        return self.adapter.wrappers[parameter.chunk]

    def reduced(self, parameter: Parameter) -> None:
        """For wrappers whose reduced gradient appears on another tensor than the unreduced one."""
        if parameter.tensor.requires_grad and id(parameter.tensor) not in self.hooked:
            hook = Reduced(self.adapter, parameter.optimizer)
            self._after_accumulation(parameter.tensor, hook)

    def _after_accumulation(self, tensor: Tensor, hook) -> None:
        self.hooked[id(tensor)] = AfterAccumulation(tensor, hook, self.adapter.timed(hook))

    def lost_hook(self, tensor: Tensor) -> bool:
        hooked = self.hooked.get(id(tensor))
        return hooked is not None and hooked.is_lost()

    def remove(self) -> None:
        for hooks in (self.hooked, self.contributions):
            for hooked in hooks.values():
                hooked.remove()
            hooks.clear()
        self.inner.clear()

    def _unreduced_series(self, parameter: Parameter, tensor: Tensor) -> int:
        if parameter.selected and "grad_unreduced" in self.adapter.kinds:
            gradient = tensor
            if self._wrapper(parameter).main_grad:
                gradient = getattr(tensor, "main_grad", tensor)
            return self.series_of(parameter, "grad_unreduced", gradient)
        return NO_SERIES

    def look_for_loss(self) -> None:
        """At every forward: whether the parameters were replaced and the optimizers still have
        those before. Neither hooks on tensors nor steps will say so then."""
        probe = self.probe
        if (
            probe is None
            or probe.held is probe.tensor
            or not self._wrapper(probe).is_replaced(probe)
            or self.adapter.no_optimizers
        ):
            return
        now = probe.held
        # FSDP2 puts a Parameter of its own in.
        if self.stands_in() or type(probe.tensor) is not nn.Parameter:
            return
        self.probe = None
        if not any(now is t for s in self.adapter.steps for t in self.stepped_by(s.optimizer)):
            self.adapter.coverage.parameters_lost(probe.name)

    def stands_in(self) -> bool:
        """Whether the model holds what functional_call() puts in for one call: no Parameters."""
        probe = self.probe
        return (
            probe is not None
            and probe.held is not probe.tensor
            and type(probe.held) is not nn.Parameter
        )

    def find_again(self) -> bool:
        """Parameters were replaced, thawed or given to an optimizer, or modules came or went. False: some
        have no shape before their first forward, and are looked for again."""
        adapter = self.adapter
        if any(map(is_lazy, (p for root in adapter.roots for p in root.parameters()))):
            why = "parameters of a lazy module have no shape before its first forward"
            adapter.coverage.not_covered("what changed in the model until then", why)
            return False
        tree, self.tree = self.tree, Tree(adapter.roots, adapter.names)
        adapter.model_changed()
        before = {(p.chunk, p.name): p for p in adapter.parameters}
        named = {(p.chunk, n): p for p in adapter.parameters for n in (p.name, *p.aliases)}
        adapter.parameters = parameters_under(adapter.wrappers)
        current = {id(p.tensor): p for p in adapter.parameters}
        replaced = sum(id(p.tensor) not in current for p in before.values())
        self._own()
        others, again = 0, False  # names that another tensor has; whether rows have one of them
        for parameter in adapter.parameters:
            known = before.get((parameter.chunk, parameter.name))
            if known is not None:
                again = again or known.tensor is not parameter.tensor
                parameter.stepped_beside |= known.stepped_beside
                if self._has_same_series(known, parameter):
                    parameter.series = known.series
            held = [named.get((parameter.chunk, n)) for n in (parameter.name, *parameter.aliases)]
            others += sum(p is not None and p.tensor is not parameter.tensor for p in held)
        replaced = max(replaced, others)
        if again:  # what its rows say begins anew
            adapter.announce_edit()
        for key, hooked in list(self.hooked.items()):
            if key not in self.inner and (key not in current or hooked.is_lost()):
                hooked.remove()
                del self.hooked[key]
                if key in self.contributions:
                    self.contributions.pop(key).remove()
        self._hook()
        for key, hooked in self.hooked.items():
            if key not in current:  # a gathered parameter
                continue
            if isinstance(hooked.hook, Accumulated):
                hooked.hook.steps = adapter.steps[current[key].optimizer]
                hooked.hook.series = self._unreduced_series(current[key], hooked.tensor)
            else:
                hooked.hook.optimizer = current[key].optimizer
            if isinstance(hooked.hook, OfDTensor):
                hooked.hook.parameter = current[key]
            if key in self.contributions:
                series = self.series_of(current[key], "grad_micro", hooked.tensor)
                contribution = self.contributions[key].hook
                contribution.series = series
                if contribution.placed is not None:
                    contribution.placed = current[key]
        adapter.find_modules()
        if self.loaded is not None:
            self.loaded.find()
        if changes := self.tree.since(tree):
            adapter.coverage.modules_changed(changes, self._stepped_among(before, current))
        elif replaced or not tree.is_changed():  # else something was put around a module
            what = f"{replaced} replaced" if replaced else "thawed, frozen or given to an optimizer"
            adapter.coverage.say_once(
                f"parameters changed after watch() ({what}): hooks were put on again"
            )
        self.new |= current.keys() - {id(p.tensor) for p in before.values()}
        if self.probe is None:
            self.tell_lost()
        return True

    def _stepped_among(self, before: dict, current: dict) -> int:
        """How many of those that left the model an optimizer still steps."""
        steps = (s for s in self.adapter.steps if s.optimizer not in self.adapter.no_optimizers)
        held = {id(tensor) for one in steps for tensor in self.stepped_by(one.optimizer)}
        gone = (p for p in before.values() if id(p.tensor) not in current)
        return sum(id(p.stepped) in held for p in gone)

    def tell_lost(self) -> None:
        """Whether no optimizer has what is new in the model: it may have got it when it steps."""
        if not self.new:
            return
        for parameter in self.adapter.parameters:
            is_trained = parameter.tensor.requires_grad and parameter.stepped is not None
            if id(parameter.tensor) in self.new and is_trained and not parameter.owned:
                self.adapter.coverage.parameters_lost(parameter.name)
                break
        self.new.clear()

    def series_of(self, parameter: Parameter, kind: str, tensor: Tensor | None = None) -> int:
        known = parameter.series.get(kind)
        if known is None:
            known = parameter.series[kind] = self.new_series(parameter, kind, tensor)
        return known

    def new_series(self, parameter, kind: str, tensor: Tensor | None, element: str = "") -> int:
        placement = self._wrapper(parameter).placement(kind, parameter)
        return self.adapter.add_series(
            kind=kind,
            name=parameter.label,
            element=element,
            chunk=parameter.chunk,
            optimizer=parameter.optimizer,
            dtype=dtype_name(parameter.tensor if tensor is None else tensor),
            space=placement.space,
            ranges=placement.ranges,
            full_shape=placement.full_shape,
            replication=placement.replication,
        )

    def _has_same_series(self, one: Parameter, two: Parameter) -> bool:
        placement = self._wrapper(two).placement
        return (one.shape, one.optimizer) == (two.shape, two.optimizer) and all(
            placement(kind, one) == placement(kind, two) for kind in one.series
        )
