# Optimizers that take the place of one that watch() was given: noticed when they step, and followed.
from __future__ import annotations

import json
import weakref

from trainmon.base.names import listed
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.steps.calls import closure_of, initialises_state, is_inside
from trainmon.torch.steps.every_step import EveryStep
from trainmon.torch.steps.optimizers import tensors_of

MOST = 100  # replacements that run.json tells
STAND_IN = "NotYetKnown"  # the class of one that only stands for what will step (Fabric's callback)
NOBODY = -1  # in the place of an index of an optimizer


class Replaced:
    """Looks at every step of every optimizer of the process. One that is not known is followed if
    it steps at least half of what a watched one steps. It must do so outside of its step, with
    gradients that no step has had. Optimizers are kept weakly."""

    def __init__(self, adapter):
        self._adapter = weakref.ref(adapter)
        self._followed: dict[int, weakref.ref] = {}
        # id -> (it, what it steps, the parameters then, index, those of them that it steps)
        self._others: dict[int, tuple] = {}
        self._taken: dict[int, weakref.ref] = {}  # of those followed, what watch() was not given
        self._beside: dict[int, weakref.ref] = {}  # of those, what steps beside another
        self._new = None  # followed since its step under way began: (it, index, step)
        self._told: list[dict] = []
        for steps in adapter.steps:
            for one in (*steps.around, steps.optimizer):
                self._followed[id(one)] = weakref.ref(one)
        self.install()

    def install(self) -> None:
        self._handle = EveryStep(self)
        weakref.finalize(self._adapter(), self._handle.remove)

    def remove(self) -> None:
        self._handle.remove()

    def begins(self, optimizer, args, kwargs, caller) -> None:
        if _is_in(self._followed, optimizer):
            return
        adapter = self._adapter()
        if adapter is None or not adapter.steps_part.on or not adapter.attached:
            return
        try:
            with unseen():
                self._look(adapter, optimizer, args, kwargs, caller)
        except Exception as error:
            adapter.steps_part.failed(error)
            adapter.steps_failed()

    def _look(self, adapter, optimizer, args, kwargs, caller) -> None:
        index = self._index_of(adapter, optimizer)
        if current_task() != IDLE or initialises_state(optimizer, caller):
            return
        if any(each.in_step and is_inside(caller, each.caller) for each in adapter.steps):
            return
        if index == NOBODY:
            self._steps_beside(adapter, optimizer)
            return
        steps = adapter.steps[index]
        # A backward is seen by hooks on parameters, which leave with a content that torch swaps.
        lost_hook, shared = adapter.registry.lost_hook, self._others[id(optimizer)][4]
        steps.pending = steps.pending or any(lost_hook(one.tensor) for one in shared)
        if not (steps.pending or callable(closure_of(args, kwargs))):
            self._steps_beside(adapter, optimizer)
            return
        self._new = weakref.ref(optimizer), index, type(steps.optimizer).__name__
        for known in (self._followed, self._taken, self._beside):
            for key in [key for key, one in known.items() if one() is None]:
                del known[key]
        self._followed[id(optimizer)] = self._taken[id(optimizer)] = weakref.ref(optimizer)
        # torch calls the hooks of the optimizer itself after these: in this step, too.
        steps.hook(optimizer, adapter.step_handles)

    def _steps_beside(self, adapter, optimizer) -> None:
        """Some of what watched ones step: no equation holds for these weights between two steps."""
        shared = self._others[id(optimizer)][4]
        if all(parameter.stepped_beside for parameter in shared):
            return
        for parameter in shared:
            parameter.stepped_beside = True
        for steps in adapter.steps:
            if steps.sweeps is not None:
                steps.sweeps.list_weights_again()
        adapter.coverage.not_covered(
            f"gap of {listed([parameter.name for parameter in shared])}",
            f"{type(optimizer).__name__}, which watch() was not given, steps them, too",
        )

    def may_follow(self, steps, optimizer, has_closure: bool) -> bool:
        """Whether one with our hooks, which steps, is to be followed from now on. Two that step with
        the gradients of one backward are no replacements: the one that watch() was given counts."""
        if _is_in(self._beside, optimizer):
            return False
        if steps.pending or steps.in_step or has_closure:
            return True
        other = steps.optimizer
        beside = optimizer if _is_in(self._taken, optimizer) else other
        if not _is_in(self._taken, beside):
            return True
        self._beside[id(beside)] = weakref.ref(beside)
        kept = other if beside is optimizer else optimizer
        adapter = self._adapter()
        self._index_of(adapter, beside)  # parameters may have been found again since
        self._steps_beside(adapter, beside)
        adapter.coverage.say_once(
            f"{type(beside).__name__} steps with the gradients of {type(kept).__name__}, beside it: its "
            "steps are not recorded"
        )
        return beside is not optimizer

    def _index_of(self, adapter, optimizer) -> int:
        """Of the watched optimizer that this one has at least half of, NOBODY if of none."""
        held = tensors_of(optimizer)
        known = self._others.get(id(optimizer))
        if known is not None and known[0]() is optimizer:
            if known[1] == held and known[2] is adapter.parameters:
                return known[3]
        every: dict[int, list[bool]] = {}
        shared = []
        for parameter in adapter.parameters:
            if parameter.owned and parameter.tensor.requires_grad:
                has = id(parameter.stepped) in held
                every.setdefault(parameter.optimizer, []).append(has)
                if has:
                    shared.append(parameter)
        found = (index for index, has in every.items() if 2 * sum(has) >= len(has))
        index = next(found, NOBODY)
        self._others = {key: one for key, one in self._others.items() if one[0]() is not None}
        self._others[id(optimizer)] = (
            weakref.ref(optimizer),
            held,
            adapter.parameters,
            index,
            shared,
        )
        return index

    def ends(self, optimizer, args, kwargs, caller) -> None:
        if self._new is None or self._new[0]() is not optimizer:
            return
        (_, index, was), self._new = self._new, None
        adapter = self._adapter()
        if adapter is None or not adapter.steps_part.on:
            return
        steps = adapter.steps[index]
        if steps.optimizer is not optimizer:  # it has called the watched one
            steps.around = [optimizer, *steps.around]
            return
        now, name = type(optimizer).__name__, list(adapter.optimizers)[index]
        step = max(adapter.core.step(index) - 1, 0)
        if was == STAND_IN:
            return
        if not self._told:
            adapter.coverage.say_once(
                f"an optimizer was replaced after watch(): from step {step} on {now} is followed in "
                f"the place of {was}"
            )
        if len(self._told) < MOST:
            self._told.append({"optimizer": name, "was": was, "is": now, "step": step})
            adapter.core.set_note("replaced_optimizers", json.dumps(self._told))


def _is_in(known: dict, optimizer) -> bool:
    return id(optimizer) in known and known[id(optimizer)]() is optimizer
