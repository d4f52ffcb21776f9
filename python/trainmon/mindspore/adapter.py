# The MindSpore adapter: puts the hooks on a model and its optimizers, and takes them all off again.
from __future__ import annotations

import functools
from dataclasses import dataclass

import mindspore as ms

from trainmon import _core
from trainmon.base.adapter import AdapterBase
from trainmon.base.coverage import FIXED_KINDS
from trainmon.base.parts import Part
from trainmon.base.rows import NO_SERIES, elsewhere
from trainmon.mindspore import arguments, hooks
from trainmon.mindspore.activations import Activations
from trainmon.mindspore.collectives import Collectives
from trainmon.mindspore.coverage import IN_GRAPH, NOT_HERE, Coverage
from trainmon.mindspore.hooks import Handles
from trainmon.mindspore.inputs import Inputs
from trainmon.mindspore.late_values import Late
from trainmon.mindspore.parameters import (
    Parameter,
    dtype_name,
    is_data_parallel,
    parameters_of,
    rank_and_world,
    replication,
)
from trainmon.mindspore.reducers import Reducers
from trainmon.mindspore.selection import Selection
from trainmon.mindspore.stacks import Stacks
from trainmon.mindspore.steps import Steps


@dataclass(frozen=True, eq=False)
class Place:
    """Where the rows of a forward, and of its backward, belong."""

    window: int
    accum: int
    recording: bool


class Adapter(AdapterBase):
    """Everything between one core Monitor and one model: prepare(), install(), then remove()."""

    def __init__(self, model, optimizers, scaler=None, selection=None, relay=None):
        super().__init__(Coverage(self), selection, relay)
        self.roots = arguments.chunks(model)
        self.optimizers = arguments.optimizers(optimizers)
        self.scaler = arguments.scaler(scaler)
        self.parameters = parameters_of(self.roots)
        self.is_graph = ms.get_context("mode") == ms.GRAPH_MODE
        self.reduces = is_data_parallel()
        self.task = 0  # number of the backward under way, or last
        self.fresh = True  # a forward has begun since
        self.in_backward = self.past_root = False
        self.met: set[int] = set()  # ids of parameters whose gradient that backward gave

    def _environment(self) -> dict:
        return {"mindspore": ms.__version__, "spread": "data parallel" if self.reduces else "plain"}

    def _ranks(self) -> dict:
        rank, world_size = rank_and_world()
        return {"rank": rank, "world_size": world_size}

    # --- start -----------------------------------------------------------------------------------

    def prepare(self, config: dict) -> int:
        if config["modules"] == "blocks":
            raise ValueError(
                'modules="blocks" is not offered under MindSpore: "all" and "auto" read every cell, and '
                "`include` chooses among them"
            )
        rows = super().prepare(config)
        self.pairs = bool(self.kinds & {"mg_direction", "update_ratio", "update"})
        for parameter in self.parameters:
            parameter.label = self.selection.label(parameter)
        if config["budget"] is not None:
            self.coverage.not_covered("budget", "hooks are not timed under MindSpore")
        if config["sample"]:
            self.coverage.not_covered("sample", "activations are read whole under MindSpore")
        return rows

    def _selection(self, config: dict) -> Selection:
        return Selection(config)

    def _kinds(self, asked: list[str]) -> set[str]:
        kinds = set(_core.expand_kinds(asked))
        if "buffer" in kinds:
            kinds.discard("buffer")
            why = "MindSpore keeps such tensors as parameters: the group weights has them"
            self.coverage.not_covered("buffer", why)
        kinds.discard("actv_recomputed")  # of torch
        if "grad_unreduced" not in asked and not self.reduces:
            kinds.discard("grad_unreduced")  # nothing is reduced: the values of grad_reduced
        if foreign := sorted(kinds & set(NOT_HERE)):
            for kind in foreign:
                self.coverage.not_covered(kind, "not offered under MindSpore")
            self.coverage.say_once(f"not offered under MindSpore: {' '.join(foreign)}")
        kinds -= set(NOT_HERE)
        if self.is_graph:
            for kind in sorted(kinds):
                self.coverage.not_covered(kind, f"GRAPH_MODE: the training is {IN_GRAPH}")
            return set()
        return kinds

    def _rows_per_step(self) -> int:
        micro = self.config["grad_acc_steps"] or 1
        selected = sum(p.selected for p in self.parameters)
        rows = selected * micro * len({"grad_unreduced", "grad_micro"} & self.kinds)
        kinds = {"grad_reduced", "param_origin", "param_updated", "mg_direction", "update"}
        rows += selected * len(kinds & self.kinds)
        rows += selected * 2 if self.wants_state else 0
        rows += len(self.roots) * micro * len({"input", "input_entropy"} & self.kinds)
        if per_cell := 2 * len({"actv", "actv_grad"} & self.kinds):
            rows += len(self._cells(self.selection.cells)) * per_cell * micro
        return rows

    def _cells(self, choose) -> list[tuple]:
        """(chunk, name, cell), each cell once."""
        found, seen = [], set()
        for chunk, root in enumerate(self.roots):
            for name, cell in choose(root, chunk):
                if id(cell) not in seen:
                    seen.add(id(cell))
                    found.append((chunk, name, cell))
        return found

    def wants(self, kind: str) -> bool:
        return kind in self.kinds or (kind not in FIXED_KINDS and "moments" in self.kinds)

    def install(self, core) -> None:
        self.core, self.handle = core, core.handle
        config = self.config
        self.parts: dict[str, Part] = {}
        self.steps_part, self.sweeps_part = self.part("steps"), self.part("sweeps")
        self.gradients, self.root_part = self.part("gradients"), self.part("forward")
        self.step_handles, self.handles = Handles(), Handles()
        self.late = Late(core, self.part("late values"), config["eps"])
        self.reducers = Reducers(self)
        self.activations = self.inputs = self.stacks = self.collectives = None
        self.steps = [
            Steps(self, optimizer, config["start_iteration"])
            for optimizer in self.optimizers.values()
        ]
        self.clock = self.steps[config["clock"]]
        try:
            if not self.is_graph:
                self._hook_steps()
            self.attach()
        except BaseException:
            self.remove()
            raise

    def part(self, name: str) -> Part:
        """The one of this name: what has failed stays off when hooks are put on again."""
        return self.parts.setdefault(name, Part(self.core, name))

    def attach(self) -> None:
        """Puts the hooks on that read something; those of steps are there already."""
        self.is_elsewhere = self.config["backend"] == "ops"
        self.observe_at = elsewhere if self.is_elsewhere else _core.observe_at
        self.attached = True
        self._own()
        by_tensor = {id(p.tensor): p for p in self.parameters}
        for steps in self.steps:
            steps.attach(by_tensor)
        if not self.is_graph:
            self._hook()
            if "cc" in self.kinds:
                self._install_collectives()
        self.coverage.start()

    def detach(self) -> None:
        """Takes them off again; those in a graph still alive do nothing any more."""
        self.attached = False
        if self.collectives is not None:
            self.collectives.remove()
        self.handles.remove()
        self.activations = self.inputs = self.stacks = self.collectives = None
        self.clock.frame = None
        self.fresh, self.in_backward, self.past_root = True, False, False
        self.reducers.forget()
        for steps in self.steps:
            steps.recording = False

    def _install_collectives(self) -> None:
        self.collectives = self._new_collectives(Collectives, self.part("collectives"))
        self.collectives.install()
        if self.reduces:
            why = "done in C++, which no hook sees; grad_unreduced and grad_reduced have both sides"
            self.coverage.not_covered("cc of nn.DistributedGradReducer", why)

    def _own(self) -> None:
        """Whose windows the rows of each parameter follow: of the first optimizer that has it."""
        owners: dict[int, int] = {}
        shared = 0
        for steps in self.steps:
            for tensor in steps.optimizer.parameters:
                shared += owners.setdefault(id(tensor), steps.index) != steps.index
        if shared:
            what = f"{shared} parameters in the steps of an optimizer"
            self.coverage.not_covered(what, "an earlier optimizer of watch() has them, too")
        for parameter in self.parameters:
            parameter.optimizer = owners.get(id(parameter.tensor), self.clock.index)
            parameter.owned = id(parameter.tensor) in owners

    def _hook_steps(self) -> None:
        for steps in self.steps:
            if self.relay is not None:
                self.relay.follow(steps)
                continue
            before, after = hooks.forward_pre(steps.before), hooks.forward(steps.after)
            optimizer = steps.optimizer
            self.step_handles.add(optimizer.register_forward_pre_hook(before, with_kwargs=True))
            self.step_handles.add(optimizer.register_forward_hook(after))

    def _hook(self) -> None:
        for root in self.roots:
            begins = hooks.harmless(self.root_part, self._root_begins)
            ends = hooks.harmless(self.root_part, self._root_ends)
            self.handles.add(root.register_forward_pre_hook(hooks.forward_pre(begins)))
            self.handles.add(root.register_forward_hook(hooks.forward(ends)))
        if "input" in self.kinds:
            self.inputs = Inputs(self, self.part("inputs"))
            self.inputs.install(self.handles)
        for parameter in self.parameters:
            if parameter.tensor.requires_grad:
                act = hooks.harmless(self.gradients, functools.partial(self.gradient, parameter))
                self.handles.add(parameter.tensor.register_hook(hooks.gradient(act)))
        if "grad_unreduced" in self.kinds:
            self.reducers.search()
        values, gradients = "actv" in self.kinds, "actv_grad" in self.kinds
        roots = {id(root) for root in self.roots}
        if values or gradients:
            self.activations = Activations(self, self.part("activations"), values, gradients)
            for chunk, name, cell in self._cells(self.selection.cells):
                self.activations.install(name, cell, chunk, id(cell) in roots, self.handles)
        if "stack" in self.kinds:
            self.stacks = Stacks(self, self.part("stacks"))
            for chunk, name, cell in self._cells(self.selection.everything):
                self.stacks.install(name, cell, chunk, self.handles)
        self.recomputes = any(
            getattr(cell, "_recompute_cell", None) is not None
            for root in self.roots
            for _, cell in root.cells_and_names()
        )

    def series_of(self, parameter: Parameter, kind: str, tensor) -> int:
        """`tensor` has the dtype; None: a share, of no shape of its own."""
        known = parameter.series.get(kind)
        if known is None:
            known = NO_SERIES
            if self.selection.takes_parameter(parameter, kind):
                known = self.add_series(
                    kind=kind,
                    name=parameter.label,
                    chunk=parameter.chunk,
                    optimizer=parameter.optimizer,
                    dtype="float32" if tensor is None else dtype_name(tensor),
                    full_shape=[] if tensor is None else list(tensor.shape),
                    replication=replication(kind, parameter.tensor, self.reduces),
                )
            parameter.series[kind] = known
        return known

    # --- what happens while training -------------------------------------------------------------

    def gradient(self, parameter: Parameter, value) -> None:
        """What one backward gives a parameter."""
        self.backward_goes_on(id(parameter))
        parameter.hooked = True
        steps = self.steps[parameter.optimizer]
        if not (steps.recording and parameter.selected):
            return
        self.reducers.at_first_gradient()
        for kind in ("grad_micro", "grad_unreduced"):
            if kind not in self.kinds or (kind == "grad_unreduced" and self.reducers.found):
                continue
            series = self.series_of(parameter, kind, value)
            if series == NO_SERIES:
                continue
            place = steps.window, self.core.accum(steps.index), 0
            self.row(series, value, *place, steps.flags)

    def backward_goes_on(self, parameter: int | None = None) -> None:
        """A hook of a backward runs. MindSpore does not say where one begins: it does where a forward
        has begun since the last one, or where a parameter is met again."""
        if self.fresh or parameter in self.met:
            self.fresh = False
            self.met.clear()
            self.task += 1
            self.in_backward = True
            self.clock.frame = None
            for steps in self.steps:
                steps.backward_begins(self.task)
        if parameter is not None:
            self.met.add(parameter)

    def _is_root(self, cell) -> bool:
        """Copies of a root have its hooks, too."""
        return any(cell is root for root in self.roots)

    def _root_begins(self, cell, *_) -> None:
        if cell.training and self._is_root(cell):
            self.fresh = True
            self.in_backward = self.past_root = False
            if self.clock.frame is None:
                self._open_frame()

    def _root_ends(self, cell, *_) -> None:
        if cell.training and self._is_root(cell):
            self.past_root = True
            self.seal("forward_end")

    def forward_of_cell(self) -> Place:
        """The place of a forward that has begun, at the latest with this cell."""
        self.fresh = True
        return self.clock.frame or self._open_frame()

    def _open_frame(self) -> Place:
        clock = self.clock
        accum = self.core.next_accum(clock.index)
        clock.frame = Place(clock.window, accum, clock.recording)
        return clock.frame

    def is_recomputing(self, is_root: bool) -> bool:
        """Whether a cell is called again by a backward, for want of what its first call did not keep."""
        return self.recomputes and (self.in_backward or self.past_root) and not is_root

    def sweep(self, series: list, values: list, steps, flags: int) -> None:
        if self.is_elsewhere:
            missed = range(len(values))
        else:
            missed = _core.sweep(self.handle, series, values, None, flags) or ()
        for i in missed:
            accum = self.core.accum(steps.index)
            self.late.add(series[i], values[i], steps.window, accum, 0, flags)

    def scale(self) -> float:
        if self.scaler is None:
            return 1.0
        return float(self.scaler.scale_value.asnumpy())

    def step_ended(self, steps) -> None:
        """Before the window advances."""
        self.in_backward = self.past_root = False
        self.fresh = True
        if steps is self.clock and self.on_step is not None:
            self.on_step(steps.recording)

    def window_opened(self, steps) -> None:
        if steps is self.clock:
            steps.frame = None
            if self.control is not None:
                self.control.look()

    def logged(self, value: float) -> None:
        """Nothing follows from it here: what was asked for is recorded, and no more."""

    # --- end -------------------------------------------------------------------------------------

    def remove(self) -> None:
        self.detach()
        self.late.drain(self.config["stop_timeout_seconds"])
        for part in self.parts.values():
            part.on = False
        self.step_handles.remove()

    def forget(self) -> None:
        """Lets go of the model and the optimizers, without waiting for the garbage collector."""
        self.roots, self.parameters, self.steps = [], [], []
        self.optimizers, self.scaler, self.on_step, self.clock = {}, None, None, None
        self.control = None
        self.activations = self.inputs = self.stacks = None
