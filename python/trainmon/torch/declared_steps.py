# Steps that the training loop declares: for a monitor that is given no optimizer.
from __future__ import annotations

import sys
import weakref

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainmon.torch.hooks import Hook
from trainmon.torch.parameters import Sweeps
from trainmon.torch.steps import is_inside


class NoOptimizer(torch.optim.Optimizer):
    """What an Adapter takes for one: it has the parameters of the model and takes no step."""

    def __init__(self, roots: list):
        tensors = {id(p): p for root in roots for p in root.parameters()}
        if not tensors:
            raise ValueError("model has no parameters: there is nothing to watch")
        super().__init__(list(tensors.values()), {"lr": 0.0})

    def step(self, closure=None):
        raise RuntimeError("this optimizer takes no steps")


class DeclaredSteps:
    """In the place of an Adapter's relay. A window ends when end() is called, whatever stepped.

    Reduced gradients are read when any optimizer of the process that has some of the parameters
    begins a step (with a closure: has ended it), so it does not matter what clears them afterwards.
    Those no optimizer has touched are read in end(). An optimizer that steps more than once in a
    window gives as many rows.
    """

    def __init__(self, reduce_shards: bool = False):
        self.reduce_shards = reduce_shards
        self.steps = None  # of the adapter, once it is installed
        self.count = 0  # windows ended
        self.caller = 0  # id of the frame that runs the optimizer step under way
        self.read: set[int] = set()  # ids of the parameters whose gradients were read
        self.known: dict[int, tuple] = {}  # id of optimizer -> (it, what it held, its Sweeps)
        self.said = False
        self.handles = [
            register_optimizer_step_pre_hook(OptimizerBegins(self)),
            register_optimizer_step_post_hook(OptimizerEnds(self)),
        ]

    def follow(self, steps) -> None:
        self.steps = steps

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles, self.steps = [], None
        self.known.clear()

    # --- while training --------------------------------------------------------------------------

    def begins(self, optimizer, args: tuple, kwargs: dict, caller) -> None:
        if self.caller and is_inside(caller, self.caller):
            return  # a sharded optimizer calls the one inside it
        self.caller = id(caller)
        if not callable(kwargs.get("closure", args[1] if len(args) > 1 else None)):
            self._read_of(optimizer)

    def ends(self, optimizer, args: tuple, kwargs: dict, caller) -> None:
        if id(caller) != self.caller:
            return
        self.caller = 0
        if callable(kwargs.get("closure", args[1] if len(args) > 1 else None)):
            self._read_of(optimizer)

    def end(self) -> None:
        """The training loop says that a step is over."""
        self.count += 1
        self.caller = 0
        steps = self.steps
        if steps is None or not steps.part.on:
            return
        try:
            self._prepare()
            had_backward = steps.pending
            parameters = steps.sweeps.parameters if steps.recording else []
            rest = [p for p in parameters if id(p.tensor) not in self.read]
            if rest:
                self._read(Sweeps(steps.adapter, steps.adapter.registry, steps, rest))
            if had_backward and not self.read and steps.recording:
                self._say_cleared()
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
            steps.sweeps.check()
        if not steps.in_step:
            steps.core.begin_attempt(steps.index)
            steps.in_step = True  # from now on cleared gradients are no abandoned ones

    def _read_of(self, optimizer) -> None:
        steps = self.steps
        if steps is None or not steps.part.on or not steps.recording:
            return
        if optimizer is steps.optimizer:
            return
        try:
            held = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
            if not any(id(p.tensor) in held for p in steps.sweeps.parameters):
                return
            self._prepare()
            self._read(self._sweeps_of(optimizer, held))
            steps.adapter.seal("before_step")
        except Exception as error:
            steps.failed(error)

    def _sweeps_of(self, optimizer, held: set[int]) -> Sweeps:
        every = self.steps.sweeps  # another one when parameters were found again
        known = self.known.get(id(optimizer))
        if known is not None:
            its, then, parent, sweeps = known
            if its() is optimizer and then == held and parent is every:
                return sweeps
        mine = [p for p in every.parameters if id(p.tensor) in held]
        sweeps = Sweeps(self.steps.adapter, self.steps.adapter.registry, self.steps, mine)
        self.known = {key: value for key, value in self.known.items() if value[0]() is not None}
        self.known[id(optimizer)] = weakref.ref(optimizer), held, every, sweeps
        return sweeps

    def _read(self, sweeps: Sweeps) -> None:
        sweeps.read("grad_reduced", "grad")
        self.read.update(id(p.tensor) for p in sweeps.parameters if p.tensor.grad is not None)

    def _say_cleared(self) -> None:
        if self.said:
            return
        self.said = True
        self.steps.adapter.coverage.say_once(
            "gradients were gone when the end of a step was declared, and no optimizer of torch had "
            "stepped with them: the step has no reduced gradients (clear them afterwards)"
        )


class OptimizerBegins(Hook):
    __slots__ = ("declared",)

    def __init__(self, declared):
        self.declared = declared

    def __call__(self, optimizer, args, kwargs):
        self.declared.begins(optimizer, args, kwargs, sys._getframe(1))


class OptimizerEnds(Hook):
    __slots__ = ("declared",)

    def __init__(self, declared):
        self.declared = declared

    def __call__(self, optimizer, args, kwargs):
        self.declared.ends(optimizer, args, kwargs, sys._getframe(1))
