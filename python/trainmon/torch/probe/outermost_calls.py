# Calls of step() of every torch optimizer, or of given ones: the outermost call for a parameter, no others.
from __future__ import annotations

import gc
import sys
import threading
import weakref

from torch.optim import Optimizer

from trainmon.base.locks import fork_safe_lock
from trainmon.base.signals import pass_on
from trainmon.torch.hooks.hook import Handles, Hook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.steps.calls import fused_scaling, initialises_state
from trainmon.torch.steps.every_step import EveryStep
from trainmon.torch.steps.innermost_hooks import InnermostHooks


class StepCalls:
    """`names_of(optimizer)` names the parameters that step with it. `look(names)` is called when
    their gradients are there, which is at the start of step(), after the user's own pre-hooks. It is at its end where that is
    given a callable, which may make them, or where GradScaler leaves unscaling to it. A step that
    it then skips is only counted. A step() inside another, in the same thread, has what the outer
    ones leave. What is raised goes to `failed(error)`. The arguments of step() are passed on as
    they are."""

    def __init__(self, optimizers, names_of, look, failed):
        """`optimizers` None: all there are, and those to come."""
        self.names_of, self.look, self.failed = names_of, look, failed
        self.on = True
        self.skipped = 0
        self._threads = threading.local()
        self._lock = fork_safe_lock()  # optimizers may step in several threads
        self._handles, self._hooks = Handles(), InnermostHooks()
        self._all = optimizers is None
        self._in_hooks: set[int] = set()  # ids of optimizers whose own pre-hooks torch is running
        for optimizer in optimizers or ():
            self._handles.add(*self._hooks.put_on(optimizer, Before(self), After(self)))
        self._handles.add(EveryStep(self))

    def remove(self) -> None:
        self.on = False
        self._handles.remove()

    def begins(self, optimizer, args, kwargs, caller) -> None:
        """Of every optimizer. torch calls its own pre-hooks next, ours the last of them."""
        if not self.on:
            return
        try:
            with self._lock:
                is_ours = self._hooks.are_on(optimizer)
                if self._all and not is_ours:
                    self._handles.drop(self._hooks.forget_gone())
                    held = self._hooks.put_on(optimizer, Before(self), After(self))
                    self._handles.add(*held)
                elif not self._in_hooks:  # one of them may call step()
                    self._hooks.move_last()
                if self._all or is_ours:
                    self._in_hooks.add(id(optimizer))
        except Exception as error:
            self.failed(error)

    def ends(self, optimizer, args, kwargs, caller) -> None:
        """What there is to do is done by our own hook."""

    def step_begins(self, optimizer, args, kwargs, caller) -> None:
        self._in_hooks.discard(id(optimizer))
        if not self.on:
            return
        try:
            with unseen():
                self._enter(optimizer, args, kwargs, caller)
        except Exception as error:
            self.failed(error)

    def step_ends(self, optimizer, args, kwargs, caller) -> None:
        if not self.on:
            return
        try:
            with unseen():
                self._leave(optimizer, caller)
        except Exception as error:
            self.failed(error)

    def _enter(self, optimizer, args, kwargs, caller) -> None:
        if initialises_state(optimizer, caller):
            return
        under_way = self._steps_around(caller)
        taken = {name for step in under_way for name in step.names}
        names = [name for name in self.names_of(optimizer) if name not in taken]
        given = (*args[1:], *kwargs.values())
        at_end = any(map(callable, given)) or fused_scaling(optimizer) is not None
        under_way.append(_Step(caller, names, at_end))
        if names and not at_end:
            self.look(names)

    def _leave(self, optimizer, caller) -> None:
        under_way = self._threads.__dict__.get("steps", [])
        place = next((i for i, s in enumerate(under_way) if s.is_run_by(caller)), None)
        if place is None:
            return
        step = under_way[place]
        del under_way[place:]  # those after it raised
        if not step.at_end or not step.names:
            return
        scaling = fused_scaling(optimizer)
        if scaling is not None and float(scaling[1]) > 0:
            self.skipped += 1
        else:
            self.look(step.names)

    def _steps_around(self, caller) -> list[_Step]:
        """The steps under way in this thread, without those that raised and never ended."""
        steps = self._threads.__dict__.setdefault("steps", [])
        if steps:
            frames, above = {}, caller.f_back
            while above is not None:
                frames[id(above)] = above
                above = above.f_back
            steps[:] = [s for s in steps if s.frame in frames and s.is_run_by(frames[s.frame])]
        return steps


class _Step:
    """One call of step(). Frames are not kept: they would keep gradients; the code tells one from
    another of the same id."""

    __slots__ = ("frame", "code", "names", "at_end")

    def __init__(self, frame, names, at_end):
        self.frame, self.code, self.names, self.at_end = id(frame), frame.f_code, names, at_end

    def is_run_by(self, frame) -> bool:
        return self.frame == id(frame) and self.code is frame.f_code


class Before(Hook):
    __slots__ = ("calls",)

    def __init__(self, calls):
        self.calls = calls

    def __call__(self, optimizer, args, kwargs):
        self.calls.step_begins(optimizer, args, kwargs, sys._getframe(1))


class After(Before):
    __slots__ = ()

    def __call__(self, optimizer, args, kwargs):
        self.calls.step_ends(optimizer, args, kwargs, sys._getframe(1))


class Owners:
    """Which optimizer has which parameters of a model, by the names that it gives them. The model is
    walked once per round of its optimizers, not at each step of each of many."""

    def __init__(self, optimizers):
        """`optimizers` None: they are looked for when one steps that is not known."""
        self._given = optimizers is not None
        self._known = {id(one): weakref.ref(one) for one in optimizers or ()}
        self._met = 0  # how many were not known when they stepped
        self._first = None  # the one that takes what nobody has
        self._named: dict = {}  # name -> the parameter, weakly
        self._places: dict[int, tuple[int, str]] = {}  # of a parameter: where in the model, name
        self._ids: dict[int, list[int]] = {}  # of the tensors of an optimizer
        self._asked: set[int] = set()  # the optimizers that stepped since the model was walked
        self._rest: list[tuple[int, str]] = []
        self.rest: frozenset[str] = frozenset()  # names of what no known optimizer has

    def of(self, optimizer, model) -> list[str]:
        """The names of those that step with this optimizer: those it has. Where no optimizer was
        given, what nobody has steps with the first one of the model. None of them if it has nothing
        to do with the model, unless nobody has: then it keeps copies of them, as for mixed
        precision."""
        key, ids = id(optimizer), _ids(optimizer)
        known = self._known.get(key)
        if known is None or known() is not optimizer:
            self._meet(optimizer)
        if key in self._asked or ids != self._ids.get(key):
            self._walk(model)
        self._asked.add(key)
        mine = sorted({self._places[i] for i in ids if i in self._places})
        anybody = len(self._rest) < len(self._named)
        if anybody and not mine:
            return []
        if not (anybody and self._given):
            first = self._first and self._first()
            if first is None or (anybody and not self._has_any(first)):
                self._first, first = weakref.ref(optimizer), optimizer
            if first is optimizer and self._rest:
                mine = sorted(mine + self._rest)
        return [name for _, name in mine]

    def parameter(self, name: str):
        """None if it is gone."""
        found = self._named.get(name)
        return found and found()

    def _meet(self, optimizer) -> None:
        """Others may be there that have not stepped either. Looking for them takes long where there
        are many objects: training that makes optimizers all the time pays for it ever less often."""
        self._met += 1
        if self._met & (self._met - 1) == 0 and not self._given:
            everyone = (one for one in gc.get_objects() if issubclass(type(one), Optimizer))
            self._known.update((id(one), weakref.ref(one)) for one in everyone)
        self._known[id(optimizer)] = weakref.ref(optimizer)
        self._ids.pop(id(optimizer), None)

    def _walk(self, model) -> None:
        self._asked.clear()
        named = dict(model.named_parameters())
        self._named = {name: weakref.ref(parameter) for name, parameter in named.items()}
        self._places = {id(p): (place, name) for place, (name, p) in enumerate(named.items())}
        alive = {key: known() for key, known in self._known.items()}
        self._known = {key: self._known[key] for key, one in alive.items() if one is not None}
        self._ids = {key: _ids(one) for key, one in alive.items() if one is not None}
        held = set().union(*self._ids.values())
        self._rest = [place for i, place in self._places.items() if i not in held]
        self.rest = frozenset(name for _, name in self._rest)

    def _has_any(self, optimizer) -> bool:
        return any(i in self._places for i in self._ids.get(id(optimizer), ()))


def _ids(optimizer) -> list[int]:
    """None of an object whose constructor did not get far enough, or of odd groups."""
    try:
        return [id(tensor) for group in optimizer.param_groups for tensor in group["params"]]
    except Exception as error:
        pass_on(error)
        return []
