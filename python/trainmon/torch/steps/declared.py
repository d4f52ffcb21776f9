# Steps that the training loop declares: for a monitor that is given no optimizer.
from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch

from trainmon.base.names import listed
from trainmon.torch.hooks.hook import Hook, ModuleHook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.parameters.sweeps import Sweeps
from trainmon.torch.steps.calls import closure_of, is_inside
from trainmon.torch.steps.every_step import EveryStep
from trainmon.torch.steps.windows import UNSEEN

SETTLE = 10.0  # seconds


class DeclaredSteps:
    """In the place of an Adapter's relay. A window ends when end() is called, whatever stepped.

    Reduced gradients are read when any optimizer of the process that has some of the parameters
    begins a step (with a closure: has ended it). So it does not matter what clears them
    afterwards. Those no optimizer has touched are read in end(). An optimizer that steps more
    than once in a window gives as many rows.
    """

    def __init__(self, reduce_shards: bool = False):
        self.reduce_shards = reduce_shards
        self.shards = None
        self.steps = None  # of the adapter, once it is installed
        self.count = 0  # windows ended
        self.caller = 0  # id of the frame that runs the optimizer step under way
        self.read: set[int] = set()  # ids of the parameters whose gradients were read
        self.known: dict[int, tuple] = {}  # id of optimizer -> (it, what it held, its parts)
        self.said = False
        self.undeclared = 0  # steps of optimizers since the last window ended
        self.handles: list = []

    def follow(self, steps) -> None:
        self.steps = steps
        self.handles = [EveryStep(self)]
        for root in steps.adapter.roots:
            if not isinstance(root, torch.jit.ScriptModule):
                hook = ForwardBegins(self)
                self.handles.append(ModuleHook(root, "register_forward_pre_hook", hook))
        if self.reduce_shards:
            from trainmon.torch.parameters.sharded_gradients import Shards  # few ask for it

            self.shards = Shards(steps.adapter)

    def settle(self) -> None:
        """Before the adapter goes: rows whose values other ranks still owe."""
        if self.shards is not None:
            self.shards.settle(SETTLE)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        if self.shards is not None:
            self.shards.close()
        self.handles, self.steps, self.shards = [], None, None
        self.known.clear()

    # --- while training --------------------------------------------------------------------------

    def begins(self, optimizer, args: tuple, kwargs: dict, caller) -> None:
        if self.caller and is_inside(caller, self.caller):
            return  # a sharded optimizer calls the one inside it
        self.caller = id(caller)
        if not callable(closure_of(args, kwargs)):
            with unseen():
                self._read_of(optimizer)

    def ends(self, optimizer, args: tuple, kwargs: dict, caller) -> None:
        if id(caller) != self.caller:
            return
        self.caller = 0
        if callable(closure_of(args, kwargs)):
            with unseen():
                self._read_of(optimizer)

    def end(self, gradients=None) -> None:
        """The training loop says that a step is over, and may give the gradients of functional
        training, by name. With `reduce_shards` all ranks should say so."""
        self.count += 1
        self.caller = self.undeclared = 0
        steps = self.steps
        if steps is None:
            return
        try:
            if steps.part.on:
                self._read_rest(gradients)
        except Exception as error:
            steps.failed(error)
        try:
            # Though something failed here: other ranks wait for this one.
            if self.shards is not None:
                self.shards.gather(steps, steps.sweeps.parameters, self.count)
            if steps.part.on:
                self.read.clear()
                steps.abandoned = 0
                steps.after_step()
        except Exception as error:
            steps.failed(error)

    def _prepare(self) -> None:
        """Before gradients are read."""
        steps = self.steps
        steps.adapter.backward.settle()
        if steps.recording:
            self._check()
        if not steps.in_step:
            steps.core.begin_attempt(steps.index)
            steps.in_step = True  # from now on cleared gradients are no abandoned ones

    def _check(self) -> None:
        """Whatever changed only after the forward had begun had no hook: counted."""
        steps = self.steps
        before, hooked = steps.sweeps, set(steps.adapter.registry.hooked)
        before.check()
        if steps.sweeps is before:
            return
        for parameter in steps.sweeps.parameters:
            tensor = parameter.tensor
            if parameter.selected and id(tensor) not in hooked and tensor.grad is not None:
                steps.core.refuse("a gradient came before its parameter was seen to be trained")

    def forward_begins(self) -> None:
        """Parameters thawed or replaced since the last step get their hooks before their gradients."""
        steps = self.steps
        if steps is None or not steps.part.on or not steps.recording or steps.in_step:
            return
        try:
            if not steps.adapter.registry.stands_in():
                steps.sweeps.check()
        except Exception as error:
            steps.failed(error)

    def _read_rest(self, gradients) -> None:
        steps = self.steps
        self._prepare()
        if not steps.recording:
            return
        if gradients is not None:
            self._read_given(gradients)
            return
        rest = [p for p in steps.sweeps.parameters if id(p.tensor) not in self.read]
        if rest:
            self._read(*self._split(rest))
        if steps.pending and not self.read:
            self._say_cleared()

    def _read_given(self, gradients) -> None:
        say = self.steps.adapter.coverage.say_once
        if not isinstance(gradients, Mapping):
            say(
                "step(grads) takes gradients by the names of parameters, as torch.func.grad gives "
                f"them, not {type(gradients).__name__}: they are not recorded"
            )
            return
        rest = dict(gradients)
        found = [(p, rest.pop(p.name)) for p in self.steps.sweeps.parameters if p.name in rest]
        self.steps.sweeps.read_given("grad_reduced", found)
        if rest:
            names = listed(map(str, rest))
            say(f"step(grads) was given names that no parameter of the model has: {names}")

    def _read_of(self, optimizer) -> None:
        steps = self.steps
        if steps is None or not steps.part.on or not steps.recording:
            return
        try:
            if self._of(optimizer) is None:
                return
            self.undeclared += 1
            if self.undeclared == UNSEEN:
                stepped = f"{type(optimizer).__name__} stepped {UNSEEN} times"
                steps.adapter.coverage.steps_undeclared(stepped)
            self._prepare()  # may find parameters again
            sweeps, apart = self._of(optimizer)
            if apart:
                self.shards.reads += 1
            self._read(sweeps, apart)
            steps.adapter.seal("before_step")
        except Exception as error:
            steps.failed(error)

    def _of(self, optimizer) -> tuple | None:
        """What is to be read of the parameters that an optimizer holds; None if it has none."""
        every = self.steps.sweeps  # another one when parameters were found again
        held = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        known = self.known.get(id(optimizer))
        if known is not None:
            its, then, parent, parts = known
            if its() is optimizer and then == held and parent is every:
                return parts
        mine = [p for p in every.parameters if id(p.stepped) in held]
        parts = self._split(mine) if mine else None
        self.known = {key: value for key, value in self.known.items() if value[0]() is not None}
        self.known[id(optimizer)] = weakref.ref(optimizer), held, every, parts
        return parts

    def _split(self, parameters: list) -> tuple:
        """(what one call reads, what is merged over ranks)."""
        adapter, shards = self.steps.adapter, self.shards
        rest, apart = [], []
        for parameter in parameters:
            takes = shards is not None and shards.takes(parameter)
            (apart if takes else rest).append(parameter)
        return Sweeps(adapter, adapter.registry, self.steps, rest), apart

    def _read(self, sweeps: Sweeps, apart: list) -> None:
        sweeps.read("grad_reduced", "grad")
        if apart:
            self.shards.read([p for p in apart if p.selected])
        found = (*sweeps.parameters, *apart)
        wrappers = self.steps.adapter.wrappers
        self.read.update(id(p.tensor) for p in found if wrappers[p.chunk].has_gradient(p))

    def _say_cleared(self) -> None:
        if self.said:
            return
        self.said = True
        self.steps.adapter.coverage.say_once(
            "gradients were gone when the end of a step was declared, and no optimizer of torch had "
            "stepped with them. The step has no reduced gradients: clear them afterwards"
        )


class ForwardBegins(Hook):
    __slots__ = ("declared",)

    def __init__(self, declared):
        self.declared = declared

    def __call__(self, module, args):
        with unseen():
            self.declared.forward_begins()
