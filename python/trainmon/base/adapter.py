# What the adapters of all frameworks do alike: they stand between one core Monitor and one model.
from __future__ import annotations

import contextlib
import hashlib
import platform

from trainmon import _core
from trainmon.base.collective_calls import compiled
from trainmon.base.control import ControlBase
from trainmon.base.coverage import FIXED_KINDS
from trainmon.base.names import as_text
from trainmon.base.rows import ELSEWHERE
from trainmon.base.signals import pass_on

# Kinds that `checks` adds.
OF_CHECKS = _core.kinds_of_checks()


class AdapterBase:
    """prepare(), install(core), then remove() and forget(). A subclass has `roots`, `optimizers`,
    `parameters`, and from install() on `core`, `handle`, `late`, `steps`. The `clock` is among
    the steps; its `frame` is the place of the forward under way."""

    declares = False  # whether the training loop declares its steps
    # A block that modes of the framework which the user set do not see.
    unseen = staticmethod(contextlib.nullcontext)

    def __init__(self, coverage, selection, relay):
        self.coverage = coverage
        self.fixed_selection = selection  # None: that of the configuration
        self.relay = relay  # step hooks that are there already
        self.on_step = None  # called with whether the clock's step that ended was recorded
        self.paused = False
        self.attached = False  # whether there are hooks but those of the steps
        self.control: ControlBase | None = None  # follows RUN/control.json
        self.collectives = None
        self.logs_collectives = False  # they are noted, not measured
        self.unread_in: dict[
            int, int
        ] = {}  # by chunk: the newest window in which it was given more

    # --- facts for the core, before it exists ----------------------------------------------------

    def identity(self) -> dict:
        environment = {"python": platform.python_version(), **self._environment()}
        return {"model_digest": self._digest(), "environment": environment, **self._ranks()}

    def _environment(self) -> dict:
        """The framework, and how the model is spread."""
        raise NotImplementedError

    def _ranks(self) -> dict:
        """rank and world_size, where they are known."""
        raise NotImplementedError

    def _digest(self) -> str:
        lines = [f"{p.chunk} {p.name} {p.shape}" for p in self.parameters]
        return hashlib.sha256(as_text("\n".join(sorted(lines))).encode()).hexdigest()[:16]

    # --- inputs ----------------------------------------------------------------------------------

    def input_unread(self, chunk: int, element: str, window: int) -> None:
        """A model is given more than tensors that have rows: nobody can tell then that a batch comes again.
        It is said once a window."""
        if self.unread_in.get(chunk) == window:
            return
        self.unread_in[chunk] = window
        self.core.add_scalar("trainmon/unread_input", float(chunk), window)
        self.coverage.not_covered(
            f"all that the model is given in {element}", "no tensor of numbers"
        )

    # --- start -----------------------------------------------------------------------------------

    def prepare(self, config: dict) -> int:
        """Decides what to watch, without touching anything; an estimate of the rows of a step."""
        self.config = config
        if config["clock"] >= len(self.optimizers):
            raise ValueError(
                f"clock is {config['clock']}, but there are only {len(self.optimizers)} optimizers"
            )
        self.kinds = self._kinds(config["kinds"] + (OF_CHECKS if config["checks"] else []))
        self.wants_state = bool(self.kinds - FIXED_KINDS)
        self.state_before = config["moments_at"] == "before_step"
        compiled(config["collective_callers"])  # raises
        self.selection = self.fixed_selection or self._selection(config)
        for parameter in self.parameters:
            parameter.selected = self.selection.parameter(parameter)
        self.selection.check(self.parameters, self.roots, self.coverage.not_covered)
        return self._rows_per_step()

    def _kinds(self, asked: list[str]) -> set[str]:
        """Those that are watched; of those that cannot be it is said why."""
        raise NotImplementedError

    def _selection(self, config: dict):
        """By include and exclude of the configuration."""
        raise NotImplementedError

    def _rows_per_step(self) -> int:
        raise NotImplementedError

    def follow_control(self, allowed, say, changed) -> None:
        """From now on; what RUN/control.json asks for already, at once."""
        self.control = self._control(allowed, say, changed)
        self.control.begin()

    def _control(self, *how) -> ControlBase:
        return ControlBase(self, *how)

    def _new_collectives(self, kind, part):
        config = self.config
        return kind(
            self,
            part,
            inputs=config["collective_inputs"],
            callers=config["collective_callers"],
            log_only=self.logs_collectives,
        )

    def add_series(self, **arguments) -> int:
        for key in ("kind", "name", "element"):
            if key in arguments:
                arguments[key] = as_text(arguments[key])
        try:
            return self.core.add_series(**arguments)
        except ValueError as error:  # a dtype that is refused, by name, when it is looked at
            pass_on(error)
            return self.core.add_series(**{**arguments, "dtype": "float32"})

    # --- what happens while training -------------------------------------------------------------

    def row(self, series: int, tensor, window: int, accum: int, call: int, flags: int) -> None:
        """A row at this place, measured by the core or, of another device, by operations."""
        seen = self.observe_at(self.handle, series, tensor, window, accum, call, flags)
        if seen == ELSEWHERE:
            self.late.add(series, tensor, window, accum, call, flags)

    def seal(self, moment: str) -> None:
        try:
            if self.late.part.on:
                self.late.seal()
        except Exception as error:
            self.late.part.failed(error)
        self.core.seal(moment)

    def window_of_scalars(self) -> int:
        """The clock's window whose forward began last: not one that has just opened."""
        clock = self.clock
        is_new = clock.frame is None and not clock.pending
        return clock.window - 1 if is_new and clock.window else clock.window

    def number(self, value) -> float:
        """What log() was given. Raises what the value raises."""
        with self.unseen():
            return float(value.detach() if hasattr(value, "detach") else value)

    def by_name(self, values, scalars: dict) -> dict:
        """What log() was given; nothing where `values` is no mapping, or one that raises."""
        try:
            return scalars if values is None else {**values, **scalars}
        except Exception as error:
            pass_on(error)
            what = f"log() takes numbers by name, or a dict of them, not {type(values).__name__}"
            self.coverage.say_once(f"{what}: {error}")
            return {}

    def no_number(self, name: str, why: Exception) -> None:
        self.core.drop_scalar()
        self.coverage.say_once(f"log({name}=...) takes a number: {why}")

    def not_recorded(self, name, why: Exception) -> None:
        if isinstance(why, TypeError):  # of the core's argument
            self.core.drop_scalar()
            why = "a name is a text that UTF-8 can hold"
        self.coverage.say_once(f"log() does not record {name!r:.80}: {why}")

    def announce_edit(self) -> None:
        """Weights or moments are edited between two steps, which is meant."""
        try:
            self.core.add_scalar("trainmon/edit", 1.0, self.window_of_scalars())
        except Exception as error:
            self.coverage.say_once(f"an edit of weights is not announced: {error}")

    def steps_failed(self) -> None:
        """Nothing can be recorded any more: no row would know its step."""
        for steps in self.steps:
            steps.recording = False

    def set_paused(self, paused: bool) -> None:
        self.paused = paused
        for steps in self.steps:
            steps.refresh()
        self.clock.frame = None
