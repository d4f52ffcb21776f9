# What the PyTorch adapter does while training: hooks and steps call it.
from __future__ import annotations

import torch

from trainmon import _core
from trainmon.base.adapter import AdapterBase
from trainmon.torch.hooks.dry_run import is_for_shapes
from trainmon.torch.hooks.dynamo import in_graphs, own_hooks
from trainmon.torch.hooks.forward import BackwardBegins
from trainmon.torch.hooks.hook import training_runs_here
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.modules.elements import of_output
from trainmon.torch.steps.calls import step_in_state
from trainmon.torch.steps.optimizers import is_around, whole_chain
from trainmon.torch.wrappers.contract import REDUCE, REPLICAS

IDLE_CLOCK = 1000  # forwards without a step of the clock that are worth a word


class DuringTraining(AdapterBase):
    """Base of Adapter, which puts the hooks on."""

    unseen = staticmethod(unseen)
    is_uneven = False  # ranks may have other numbers of batches, and it was said

    def add_series(self, **arguments) -> int:
        if "chunk" in arguments and self.fixed_selection is None:  # faces count those of their rank
            chunk = arguments["chunk"]
            arguments["chunk"] = self.wrappers[chunk].chunk_number(chunk)
        return super().add_series(**arguments)

    def activation_series(self, kind, name, element, chunk, tensor) -> int:
        return self.add_series(
            kind=kind,
            name=name,
            element=element,
            chunk=chunk,
            optimizer=self.clock.index,
            dtype=dtype_name(tensor),
            replication=self.wrappers[chunk].placement(kind, None).replication,
        )

    def input_series(self, element, chunk, tensor, replication) -> tuple[int, int]:
        """Of what a chunk is given, and of the entropy of its ids."""
        place = {
            "name": self.wrappers[chunk].chunk_name,
            "element": element,
            "chunk": chunk,
            "optimizer": self.clock.index,
            "replication": replication,
        }
        return (
            self.add_series(kind="input", dtype=dtype_name(tensor), **place),
            self.add_series(kind="input_entropy", dtype="float64", **place),
        )

    def buffer_series(self, name, chunk, tensor) -> int:
        """`tensor` may be None, where the module makes it later; rows have the dtype of what there is then."""
        return self.add_series(
            kind="buffer",
            name=name,
            chunk=chunk,
            optimizer=self.clock.index,
            dtype=dtype_name(tensor) if isinstance(tensor, torch.Tensor) else "float32",
            replication="independent",
        )

    def timed(self, hook):
        return hook if self.own_time is None else self.own_time.hook(hook)

    # --- forward and backward --------------------------------------------------------------------

    def read_main_grad(self) -> None:
        """What is due since InMainGrad was called, which the framework has added to by now."""
        due, self.main_grad_due = self.main_grad_due, None
        if due is not None:
            series, tensor, place = due
            self.row(series, tensor.main_grad, *place)

    def open_frame(self) -> _core.Place:
        """The place of the forward that begins now, or is under way."""
        if is_for_shapes():
            return _core.Place(self.clock.window, 0, False, 0)  # not kept: the next call asks again
        self.backward.settle()
        for steps in self.steps:
            steps.forward_begins()
        clock = self.clock
        window, accum = clock.window, self.core.next_accum(clock.index)
        frame = self.last_frame  # still the place when only another optimizer had a backward
        if frame is None or (frame.window, frame.accum, frame.recording) != (
            window,
            accum,
            clock.recording,
        ):
            frame = self.last_frame = _core.Place(window, accum, clock.recording, clock.flags)
        clock.frame = frame
        return frame

    def is_put_anew(self) -> bool:
        return sum(wrapper.is_put_anew() for wrapper in self.wrappers) > 0

    def look_again(self) -> None:
        """In the first forward, and in that of a DDP put around the model since: a framework may have taken the
        model over."""
        self.looked_again = True
        self.look_at_wrappers()
        for steps in self.steps:
            steps.find_start()

    def _tell_uneven(self) -> None:
        self.is_uneven = True
        self.core.add_scalar("trainmon/uneven", 1.0, self.clock.window)
        why = "under Join, ranks may have other numbers of batches"
        for what in (REDUCE, REPLICAS):
            self.coverage.not_covered(what, why)

    def forward_begins(self) -> None:
        training_runs_here()
        if not self.looked_again or self.is_put_anew():
            self.look_again()
        in_graphs.tell()
        own_hooks.overlook(self)
        if not self.is_uneven and any(wrapper.are_uneven() for wrapper in self.wrappers):
            self._tell_uneven()
        if self.has_recorder:
            self.core.forward_begins()
        self.registry.look_for_loss()
        if self.clock.frame is None:
            self.open_frame()
        if self.clock.recording:
            self._look_at_modules()
        if self.activations is not None:
            self.activations.may_be_traced = in_graphs.is_loaded()
            self.activations.forward_begins()
        self.forwards += 1
        if self.forwards == IDLE_CLOCK and self.declares:
            self.coverage.steps_undeclared(f"the model was called {IDLE_CLOCK} times")
        elif self.forwards == IDLE_CLOCK:
            self.coverage.say_once(
                f"the optimizer that activations follow (clock={self.clock.index}) has not stepped "
                f"for {IDLE_CLOCK} forwards: `clock` names another one, if it was not replaced"
            )

    def _look_at_modules(self) -> None:
        """What is new gets its hooks before it is called. In a forward, wrappers that spread a model cannot
        always tell its parameters: their hooks wait for the step."""
        registry = self.registry
        tree = registry.tree if registry.is_plain else self.tree
        if tree is None or not tree.is_changed() or registry.stands_in():
            return
        if not (registry.is_plain and registry.find_again()):
            self.selection.model_changed()
            self.find_modules()

    def forward_ends(self, output) -> None:
        if torch.is_grad_enabled() and not is_for_shapes():
            for _, tensor in of_output(output):
                if tensor.requires_grad and tensor.grad_fn is not None:
                    tensor.register_hook(self.timed(BackwardBegins(self)))
        self.seal("forward_end")

    def _backward_ended(self) -> None:
        self.timed(self._end_backward)()

    def _end_backward(self) -> None:
        self.read_main_grad()
        for steps in self.steps:
            steps.backward_ended()
        if self.activations is not None:
            self.activations.backward_ended()
        self.seal("backward_end")

    # --- steps -----------------------------------------------------------------------------------

    def declare_step(self, gradients) -> None:
        """The loop of a monitor without an optimizer says that a step is over."""
        with unseen():
            self.relay.end(gradients)

    def optimizer_changed(self, steps, optimizer) -> None:
        """It steps in the place of the one before, which is not kept: its state is large."""
        before = steps.optimizer
        name = list(self.optimizers)[steps.index]
        self.optimizers[name] = optimizer
        kept = [one for one in self.around if not is_around(one, before) and one is not before]
        self.around = (*kept, *whole_chain(optimizer))
        for wrapper in self.wrappers:
            wrapper.optimizers = self.around

    def window_opened(self, steps) -> None:
        if steps is self.clock:
            steps.frame = None
            self.forwards = 0

    def window_ends(self, steps, skipped: bool) -> None:
        if self.full_steps is not None:
            self.full_steps.window_ends(steps, skipped)

    def logged(self, name: str, value: float) -> None:
        if self.full_steps is not None:
            self.full_steps.logged(name, value)

    def step_ended(self, steps) -> None:
        """Before the window advances."""
        if steps is not self.clock:
            return
        self.was_recorded = steps.recording
        if self.on_step is not None:
            self.on_step(steps.recording)

    def step_over(self, steps) -> None:
        """Between two windows."""
        if steps is not self.clock:
            return
        if self.own_time is not None:
            if self.activations is not None:
                self.own_time.seconds += self.activations.taken_seconds()
            if self.own_time.step_over(self.was_recorded):
                steps.refresh()
        if self.full_steps is not None:
            self.full_steps.look()
        if self.control is not None:
            self.control.look()

    def steps_taken(self, optimizer) -> int:
        taken = (wrapper.steps_taken() for wrapper in self.wrappers)
        return next((count for count in taken if count is not None), step_in_state(optimizer))

    def turn(self, optimizer) -> tuple[int, int]:
        """Which of how many calls of its step() that are one step of training is beginning."""
        turns = (wrapper.turn(optimizer) for wrapper in self.wrappers)
        return next((turn for turn in turns if turn != (0, 1)), (0, 1))

    def skipped_step(self) -> bool:
        return sum(wrapper.skipped_step() for wrapper in self.wrappers) > 0

    def steps_failed(self) -> None:
        super().steps_failed()
        if self.activations is not None:
            self.activations.live = False
