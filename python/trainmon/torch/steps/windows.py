# The windows of one optimizer: when a step begins and ends, and what became of its gradients.
from __future__ import annotations

import math

from torch import Tensor

from trainmon import _core
from trainmon.torch.hooks.backward import IDLE
from trainmon.torch.parameters.step_formulas import formula_of
from trainmon.torch.steps.calls import (
    begins_anew,
    closure_of,
    fused_scaling,
    initialises_state,
    is_inside,
)
from trainmon.torch.steps.innermost_hooks import InnermostHooks
from trainmon.torch.steps.optimizers import has_stages, hooked_around
from trainmon.torch.steps.step_reads import StepReads

STILL_SCALED = 1
UNSEEN = 20  # backwards in a row that led to no step and are worth a word


class Steps(StepReads, _core.Steps):
    """What hooks look at in every call is in C++: `recording`, `task`, `flags`, `previous`,
    `last` and `frame`. The frame is the place of the forward under way, which the clock's steps
    know."""

    __slots__ = (
        "adapter", "core", "index", "optimizer", "part", "sweeps", "directions", "updates", "formulas",
        "window", "turns_left",
        "pending", "in_step", "first", "zero", "scale", "fused",
        "groups", "start_known", "caller", "inner", "ignored", "abandoned", "attribute", "around",
        "lost_state", "has_moved", "stages_left", "stepped", "uncleared", "mistaken", "has_stepped", "kept",
        "_read", "_hooks",
    )  # fmt: skip

    def __init__(self, adapter, optimizer, start_iteration: int | None):
        super().__init__(adapter.backward)
        self.adapter, self.core, self.optimizer = adapter, adapter.core, optimizer
        self.part = adapter.steps_part
        self._read = adapter.sweeps_part.run  # what fails there does not make the steps lose count
        self._hooks = InnermostHooks()
        self.sweeps = self.directions = self.updates = self.formulas = self.groups = None
        self.start_known = start_iteration is not None
        start = start_iteration if self.start_known else adapter.steps_taken(optimizer)
        self.index = self.core.add_optimizer(start)
        # The faces of other monitors have no place for what groups say.
        if adapter.fixed_selection is None:
            self.groups = _core.DeclaredGroups(self.core, self.index)
        self.flags = STILL_SCALED if adapter.loss_scale.is_known() else 0
        self.around = hooked_around(optimizer, adapter.around)  # whose step() calls its step()
        self.attribute = "grad"  # in which gradients of parameters add up
        self.scale = 1.0
        self.has_stepped = False
        self.mistaken = False  # rows of the open window are not flagged as scaled, but they are
        self.fused = None  # what a fused step divides gradients by, and whether it leaves them out
        self.in_step = False
        self.caller = 0  # id of the frame that runs the step under way
        self.inner = 0  # steps begun inside it: an optimizer whose step() calls super().step()
        self.ignored = False  # the step under way is none of training's
        self.turns_left = 0  # further calls of step() that are part of the step under way
        self.kept = _core.KeptStates()  # what the optimizer kept of each tensor after its last step
        self.lost_state = False  # somebody made some of it anew before the step under way
        self.has_moved = False  # some of it is elsewhere than after its last step, as if offloaded
        self.abandoned = 0  # windows in a row whose gradients reached no step
        self.stepped = []  # parameters whose gradients the last step took
        self.advance()

    @property
    def outer(self):
        """What adds to the optimizer's step; None for a second stage, which begins with the weights before."""
        return next((one for one in self.around if not has_stages(one)), None)

    def install(self, handles) -> None:
        if self.adapter.relay is not None and self is self.adapter.clock:
            self.adapter.relay.follow(self)
            return
        for one in (*self.around, self.optimizer):
            self.hook(one, handles)

    def hook(self, optimizer, handles) -> None:
        handles.drop(self._hooks.forget_gone())
        handles.add(*self._hooks.put_on(optimizer, *self.adapter.step_hooks(self)))

    def follow(self, optimizer, has_closure: bool) -> bool:
        """Another one of those with our hooks begins a step: what is read of an optimizer, of that.
        False: it steps beside the one followed."""
        if any(optimizer is one for one in self.around):
            return True
        replaced = self.adapter.replaced
        if replaced is not None and not replaced.may_follow(self, optimizer, has_closure):
            return False
        self.adapter.optimizer_changed(self, optimizer)
        self.adapter.announce_edit()  # its moments follow no equation from those of the one before
        is_other = type(optimizer) is not type(self.optimizer)
        self.optimizer = optimizer
        self.around = hooked_around(optimizer, self.adapter.around)
        if is_other:
            self._begin_other_class()
        if self.sweeps is not None:
            self.sweeps.order, self.sweeps.has_order = None, True
        return True

    def _begin_other_class(self) -> None:
        """What was declared and known of the one before holds no more. The scalar has its number, of a known
        formula -1 - number."""
        is_known = formula_of(self) is not None
        value = -1 - self.index if is_known else self.index
        self.core.add_scalar("trainmon/other_optimizer", float(value), self.adapter.clock.window)
        if self.groups is not None:
            self.groups = _core.DeclaredGroups(self.core, self.index)
        if self.formulas is not None:
            self.formulas = self.formulas.of_other_class()

    def advance(self) -> None:
        """A new window is open."""
        self.task = IDLE
        self.pending = False  # a backward has put gradients into this window
        self.in_step = self.mistaken = self.uncleared = False
        # How often gradients may yet be cleared between two stages of the step.
        self.stages_left = sum(map(has_stages, self.around))
        self._forget_gradients()
        self.window = self.core.window(self.index)
        self.refresh()
        self.adapter.window_opened(self)

    def _forget_gradients(self) -> None:
        # Parameters that got a gradient in this window: the first one, and the last two.
        self.first = self.previous = self.last = None
        self.zero: set[int] = set()  # ids of those that were zero anyway: they tell nothing

    def _probes(self) -> list[Tensor]:
        return [one for one in (self.first, self.previous, self.last) if one is not None]

    def attached_anew(self) -> None:
        """The model is spread in another way than it was thought to be."""
        self.flags = STILL_SCALED if self.adapter.loss_scale.is_known() else 0
        self.refresh()

    def scales(self) -> None:
        """Losses are scaled, as is seen only now."""
        if not self.flags & STILL_SCALED:
            self.flags, self.mistaken = STILL_SCALED, True

    def _scale_now(self):
        """NaN where losses are scaled, but nobody known does it."""
        adapter = self.adapter
        if self.mistaken or (self.flags & STILL_SCALED and not adapter.loss_scale.is_known()):
            return math.nan
        return adapter.loss_scale.now()

    def detached(self) -> None:
        """No hook but those of the step is left, and no loss scale is seen any more."""
        self.sweeps = self.directions = self.updates = self.formulas = None
        self.recording = False
        self.frame = None
        self.scale = math.nan if self.adapter.loss_scale.is_known() else 1.0

    def refresh(self) -> None:
        # Rows without steps would go to the wrong ones.
        on = self.part.on and self.adapter.attached and not self.adapter.paused
        self.recording = on and self.core.recording(self.index)
        if self is self.adapter.clock and self.adapter.activations is not None:
            self.adapter.activations.live = self.recording

    def failed(self, error: Exception) -> None:
        self.part.failed(error)
        self.recording = False
        self.adapter.steps_failed()

    def find_start(self) -> None:
        """A checkpoint may be loaded after watch(). It is looked for before the first rows, which
        a kill may leave alone, and for the last time when the first step begins."""
        if self.start_known or self.window:
            return
        step = self.adapter.steps_taken(self.optimizer)
        if step != self.core.step(self.index):
            self.core.set_start_step(self.index, step)
            self.refresh()

    # --- backward and forward --------------------------------------------------------------------

    def backward_begins(self, tensor: Tensor | None) -> None:
        """The first hook of a backward for one of our parameters, of `tensor` if it keeps .grad."""
        adapter = self.adapter
        with adapter.lock:
            task = adapter.backward.task
            if self.task == task:
                return
            if self._was_cleared(besides=tensor) and not self._stage_ended():
                self._abandon()
            if not self.start_known and not self.pending:
                self.find_start()
            if not self._probes():  # torch.autograd.grad() adds to no gradient
                self.uncleared = self._is_uncleared(besides=tensor)
            self.task = task
            self.core.on_backward(self.index, task)
            self.pending = True
            self.scale = self._scale_now()
            if tensor is not None:
                self.first = tensor
            adapter.clock.frame = None

    def backward_ended(self) -> None:
        found = [(id(p), getattr(p, self.attribute, None)) for p in self._probes()]
        self.zero = {key for key, g in found if g is not None and _core.first_row_is_zero(g)}

    def forward_begins(self) -> None:
        """Gradients that vanished since the last backward never reached a step."""
        if self.pending and not self.in_step:
            with self.adapter.lock:
                skipped = self.adapter.skipped_step()
                cleared = self._was_cleared() and not self._stage_ended()
                if skipped or cleared or self._scale_fell():
                    self._abandon(skipped)

    def _was_cleared(self, besides: Tensor | None = None) -> bool:
        if not self.pending or self.in_step:
            return False
        # Users clear single gradients, too: all that can be judged must be gone.
        cleared = False
        for tensor in self._probes():
            if tensor is besides:
                continue
            gradient = getattr(tensor, self.attribute, None)
            if gradient is not None:
                if id(tensor) in self.zero:
                    continue
                if not _core.first_row_is_zero(gradient):
                    return False
            cleared = True
        return cleared

    def _is_uncleared(self, besides: Tensor | None) -> bool:
        """Whether gradients that the last step took are still there, where they can be read at once."""
        tensors = [one for one in self.stepped if one is not besides]
        gradients = [getattr(one, self.attribute, None) for one in tensors]
        kept = [g is not None and _core.first_row_is_zero(g) is False for g in gradients]
        return any(kept) and all(kept)

    def _stage_ended(self) -> bool:
        """Whether the gradients were cleared before the next backward of the same step."""
        if not self.stages_left:
            return False
        self.stages_left -= 1
        self._forget_gradients()
        return True

    def _scale_fell(self) -> bool:
        now = self.adapter.loss_scale.now()
        return isinstance(now, float) and isinstance(self.scale, float) and now < self.scale

    def _abandon(self, skipped: bool = False) -> None:
        self.abandoned += 1
        if self.abandoned == UNSEEN:
            self.adapter.coverage.steps_unseen(UNSEEN)
        self.adapter.window_ends(self, skipped=self.adapter.loss_scale.is_known())
        before, now = self.scale, self._scale_now()
        if isinstance(before, float):
            skipped = skipped or self._scale_fell() or self.core.saw_non_finite(self.index)
            self.core.abandon_window(self.index, "skipped" if skipped else "unknown", before)
        else:
            self._end_when_known(
                [before, now], lambda v: ("skipped" if v[1] < v[0] else "unknown", v[0])
            )
        self.advance()

    # --- step ------------------------------------------------------------------------------------

    def before_step(self, args: tuple, kwargs: dict, caller):
        if self.in_step and is_inside(caller, self.caller):
            self.inner += 1
            return None
        self.caller, self.inner, self.abandoned = id(caller), 0, 0
        self.ignored = initialises_state(self.optimizer, caller)
        if self.ignored:
            return None
        turn, turns = self.adapter.turn(self.optimizer)
        self.turns_left = turns - turn - 1
        if turn and self.in_step:
            self.read_before()
            return None
        self.adapter.backward.settle()
        self.find_start()
        if not self.start_known and not self.window:
            self.adapter.coverage.begins_at(self.core.step(self.index))
        self.start_known = True
        self.core.begin_attempt(self.index)
        self.in_step = True
        self._announce_others()
        self.fused = fused_scaling(self.optimizer)
        if not self.has_stepped or self.fused is not None:
            self.adapter.loss_scale.look_for_scaler(caller)
            self.has_stepped = True
        if self.fused is not None:
            self.scales()  # there is a scaler, though nobody showed it to us
        self._look_at_state()
        if self.recording:
            self._read(self.sweeps.check)
        fn = closure_of(args, kwargs)
        if callable(fn):
            # The backward is still to come, inside: gradients are read each time it has run.
            self._read_behind(gradients=False)
            closure = self._watched(fn)
            if "closure" in kwargs:
                return args, {**kwargs, "closure": closure}
            return (args[0], closure, *args[2:]), kwargs
        self._read_behind(gradients=True)
        return None

    def _look_at_state(self) -> None:
        """Another state is an edit, but for one that is replaced before each step: its numbers are the same."""
        changed = self.kept.changed(self.optimizer.state)
        self.lost_state = any(map(begins_anew, changed))
        if changed and not (self.lost_state or self.has_moved):
            self.adapter.announce_edit()
        self.has_moved = bool(changed)

    def _watched(self, fn):
        runs = 0

        def closure(*args, **kwargs):
            nonlocal runs
            result = fn(*args, **kwargs)
            try:
                runs += 1
                if runs == 2:
                    self.adapter.coverage.closure_runs_again(self)
                if self.part.on:
                    self.adapter.backward.settle()
                    self._read_groups()
                    self.read_before(weights=False)
            except Exception as error:
                self.failed(error)
            return result

        return closure

    def after_step(self) -> None:
        if self.inner:
            self.inner -= 1
            return
        if self.ignored:
            self.ignored = False
            return
        self.kept.keep(self.optimizer.state)
        if self.lost_state:  # moments begin anew
            self.adapter.announce_edit()
        self._announce_others()
        if self.recording:
            self.read_after()
        if self.turns_left:
            self.caller = 0  # its frame is gone, and another may take its place
            return
        buffers = self.adapter.buffers
        if self.recording and buffers is not None and self is self.adapter.clock:
            buffers.read()
        scale, found_inf = self.scale, None
        if self.fused is not None:
            scale, found_inf = self.fused[0] if self.fused[0] is not None else scale, self.fused[1]
        if self.mistaken:
            scale = math.nan
        self.fused = None
        overflowed = found_inf is not None and found_inf.is_cpu and float(found_inf) > 0
        self.adapter.window_ends(self, skipped=overflowed)
        if self.uncleared and self.recording:
            self.core.add_scalar("trainmon/uncleared", float(self.index), self.adapter.clock.window)
        self.stepped = [one for one in self._probes() if id(one) not in self.zero]
        tensors = [t for t in (scale, found_inf) if isinstance(t, Tensor)]
        self._end_when_known(
            tensors,
            lambda v: (
                "skipped" if found_inf is not None and v[-1] > 0 else "taken",
                v[0] if isinstance(scale, Tensor) else scale,
            ),
        )
        self.adapter.step_ended(self)
        self.adapter.seal("after_step")
        self.advance()
        # What the user's own pre-hooks do comes before ours, whoever came first. Not done before a
        # step: torch may be running them.
        self._hooks.move_last()
        self.adapter.step_over(self)

    def _end_when_known(self, tensors: list[Tensor], outcome) -> None:
        """Closes the window with outcome(values of tensors), now if nothing has to be waited for."""
        if all(tensor.device.type == "cpu" for tensor in tensors):
            self.core.end_attempt(self.index, *outcome([float(tensor) for tensor in tensors]))
            return
        window = self.window
        self.core.end_attempt(self.index, None, math.nan)
        self.adapter.late.scalars(
            tensors, lambda values: self.core.decide(self.index, window, *outcome(values))
        )
