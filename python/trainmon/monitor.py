# trainmon.watch: one call that puts a monitor on a training run, and the object it gives back.
from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trainmon import _core, alerts
from trainmon.base.console import say
from trainmon.base.edits import Edits
from trainmon.base.signals import pass_on
from trainmon.checks import arguments
from trainmon.config import config_json
from trainmon.start_line import start_line
from trainmon.stop_line import stop_line
from trainmon.summary import floats_of
from trainmon.volume import Volume

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on

    from trainmon.config_types import ConfigKeys, OtherKeys

STEPS_TO_TIME = 20  # steps after which the size of a day is measured instead of assumed


def watch(
    model,
    optimizer=None,
    *,
    kinds: str | Collection[str] | None = None,
    every: int | None = None,
    budget: str | float | None = None,
    out: str | os.PathLike | None = None,
    config: ConfigKeys | Mapping[str, Any] | str | os.PathLike | None = None,
    scaler=None,
    on_alert=None,
    **keys: Unpack[OtherKeys],
) -> Watch:
    """Watches a training run until stop(), the end of a `with` block or the end of the process.

    model      a torch.nn.Module or a mindspore.nn.Cell, or a list of them (pipeline chunks). Of
               PyTorch also a dict of them: names of their tensors begin with its keys
    optimizer  its optimizer, or a list or dict of several. Without one (loops of your own of PyTorch)
               call step() of the Watch after each update
    kinds      grads, weights, moments, activations, single ones such as exp_avg, or all; gradients if unset
    every      record one step in `every`
    budget     most of the step's time that monitoring may take, "1%" or 0.01: fewer steps are
               recorded to keep to it
    out        the run directory
    config     settings as a dict or the path of a JSON file; keyword arguments win over it
    scaler     the GradScaler of the run: makes it certain which steps it skipped (of MindSpore: the
               LossScaler, whose scale is recorded)
    on_alert   called with each alert, a dict, on a thread of its own. Or a command, a list of str,
               that gets it as JSON on its standard input. What it prints goes to standard error
    keys       any other key: include, exclude, start_step, ranks, sinks, ... (docs/configuration.md)

    Raises TypeError naming the argument, or ConfigError (a ValueError) naming every fault. Raises
    RuntimeError when the run directory cannot be made, holds the run of another model, or another
    process is still writing there. After that nothing raises into the training loop.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> mon = trainmon.watch(model, optimizer, every=2, out="watched")
    >>> for batch in torch.ones(4, 8, 4):  # four steps, of which two are recorded
    ...     optimizer.zero_grad()
    ...     loss = model(batch).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     mon.log(loss=loss.item())
    >>> health = mon.stop()
    >>> health["rows_produced"], health["sinks"][0]["rows_dropped"]
    (4, {})
    """
    named = {"kinds": kinds, "every": every, "budget": budget, "out": out}
    given = {key: value for key, value in named.items() if value is not None}
    settings = config_json(config, **keys, **given)
    with (adapter := _adapter_of(model)).unseen():
        return Watch(adapter(model, optimizer, scaler), settings, on_alert=on_alert)


def _adapter_of(model) -> type:
    """The adapter of the framework that the model is of; whoever has one to give has loaded it."""
    first = next(iter(model.values()), None) if isinstance(model, dict) else model
    first = first[0] if isinstance(first, (list, tuple)) and first else first
    mindspore = sys.modules.get("mindspore")
    if mindspore is not None and isinstance(first, mindspore.nn.Cell):
        from trainmon.mindspore.adapter import Adapter as OfMindSpore

        return OfMindSpore
    if sys.modules.get("torch") is None:
        raise TypeError(
            "model must be a torch.nn.Module or a mindspore.nn.Cell, not " + type(model).__name__
        )
    from trainmon.torch.adapter import Adapter

    return Adapter


_at_work: weakref.WeakSet = weakref.WeakSet()  # hooks hold a Watch as long as there is its model


@atexit.register
def _stop_all() -> None:
    for watch in list(_at_work):
        watch.stop()


class Watch:
    """A monitor at work, made by watch(). Its methods never raise into a training loop; all but
    stop() are cheap.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with trainmon.watch(model, optimizer, out="one_step") as mon:
    ...     model(torch.ones(8, 4)).sum().backward()
    ...     optimizer.step()
    >>> table = trainmon.read_table(mon.directory)
    >>> list(zip(table["name"], table["norm"].round(3).tolist()))
    [('weight', 22.627), ('bias', 11.314)]
    """

    def __init__(
        self,
        adapter,
        settings: str,
        parts: Mapping[str, Any] | None = None,
        on_alert: alerts.OnAlert | None = None,
    ):
        on_alert = alerts.checked(on_alert)
        config = json.loads(settings)
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._ended: dict[str, Any] | None = None
        self._adapter = adapter
        rows = adapter.prepare(config)
        who = adapter.identity()
        self._check_volume(config, rows, who)
        self._core = _core.Monitor(
            json.dumps(config),
            json.dumps(who),
            json.dumps({"queue": bool(on_alert), **(parts or {})}),
        )
        self._speaks = self._core.rank == 0 and not parts
        self._steps, self._since, self._recorded = 0, time.monotonic(), False
        try:
            adapter.install(self._core)
            try:
                self._begin(config, functools.partial(self._check_volume, who=who), on_alert, parts)
            except BaseException:
                adapter.remove()
                raise
        except BaseException:
            self._core.stop()
            raise
        _at_work.add(self)

    def _begin(self, config: dict, allowed, on_alert, parts) -> None:
        self._alerts = alerts.AlertThread(self._core, on_alert) if on_alert else None
        self._adapter.on_step = self._step_ended
        coverage = self._adapter.coverage
        self._say(start_line(self._core, config, coverage, self._volume, self.directory))
        if not parts:
            self._adapter.follow_control(allowed, self._say, self._switched)

    def __reduce__(self):
        # A model or trainer that keeps a Watch can be copied and saved: without it.
        return type(None), ()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    # --- while training --------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The run directory, which every tool takes. This rank's files are inside.

        >>> mon.directory.endswith("one_step")
        True
        """
        return os.path.dirname(os.path.dirname(self._core.directory))

    def log(self, values: Mapping[str, float] | None = None, /, **scalars: float) -> None:
        """Scalars of the run, such as loss and learning rate, by name or in a dict. They belong to the
        step whose forward began last, before or after optimizer.step(). A tensor of one element is
        read: that waits for its device.

        >>> mon.log(loss=0.5, grad_norm=torch.tensor(2.0))
        >>> trainmon.read_table(mon.directory).scalars["value"].tolist()
        [0.5, 2.0]
        """
        if self._ended is not None or not self._adapter.attached:
            return
        for name, value in self._adapter.by_name(values, scalars).items():
            try:
                value = self._adapter.number(value)
            except Exception as error:
                pass_on(error)
                self._adapter.no_number(name, error)
                continue
            try:
                self._core.add_scalar(name, value, self._adapter.window_of_scalars())
                self._adapter.logged(name, value)
            except Exception as error:
                pass_on(error)
                self._adapter.not_recorded(name, error)

    def edits(self, why: str) -> Edits:
        """A block in which weights are edited between two steps on purpose: a checkpoint is loaded,
        an average swapped in. `trainmon diagnose` takes it for no fault; `why` is said once.
        What `load_state_dict()` of a watched model or optimizer does is announced by itself.

        >>> with mon.edits("the bias is not trained yet"), torch.no_grad():
        ...     _ = model.bias.zero_()
        """
        return Edits(self._adapter, why, lambda: self._ended is None)

    def step(self, grads: Mapping[str, Any] | None = None) -> None:
        """Of a watch() without an optimizer: a step is over. To be called after the update, before
        gradients are cleared. `grads` are those of functional training (torch.func), by name.

        >>> layer = torch.nn.Linear(4, 2)
        >>> with trainmon.watch(layer, out="without_optimizer") as alone:
        ...     layer(torch.ones(8, 4)).sum().backward()
        ...     alone.step()
        >>> trainmon.read_table("without_optimizer").distinct("step")
        [0]
        """
        if self._ended is not None or os.getpid() != self._process:
            return
        if self._adapter.declares:
            self._adapter.declare_step(grads)
        else:
            self._adapter.coverage.say_once(
                "step() is for a watch() without an optimizer: this one follows the optimizer given"
            )

    def latest(self) -> list[dict[str, Any]]:
        """The rows of the last step that is complete and has passed the writer, on this rank.

        >>> mon.flush()
        True
        >>> [(row["kind"], row["name"], row["count"]) for row in mon.latest()]
        [('grad_reduced', 'weight', 8), ('grad_reduced', 'bias', 2)]
        """
        names = ("kind", "name", "element", "chunk", "optimizer", "step", "accum", "call")
        rows = []
        for *key, statistics in self._core.latest():
            rows.append({**dict(zip(names, key, strict=True)), **statistics})
        return rows

    def summary(self) -> dict[str, float]:
        """At most twenty floats about the last complete step, on this rank. They are, per kind, the
        norm over all tensors, the largest norm of one, and how many elements were not finite. With
        `checks` also how many checks have failed since the start.

        >>> mon.flush()
        True
        >>> {name: round(value, 2) for name, value in mon.summary().items()}
        {'non_finite': 0.0, 'grad_reduced/norm': 25.3, 'grad_reduced/largest': 22.63}
        """
        floats = floats_of(self.latest())
        failed = self._core.failed_checks()
        return floats if failed is None else {**floats, "failed_checks": float(failed)}

    def health(self) -> dict[str, Any]:
        """Rows produced, written and dropped, per sink and reason; what switched itself off.

        >>> mon.health()["rows_produced"], mon.health()["parts_off"]
        (2, {})
        """
        return self._ended or self._core.health()

    def flush(self, timeout: float = 30.0) -> bool:
        """Waits until all that this process has handed over so far is in the files of every sink. A
        kill loses none of it then. It waits at most `timeout` seconds. False if that took longer, if
        a sink could not write or rows were dropped, and in a forked child. Any thread may call it,
        while paused and after stop(), too. Only the thread that called watch() fetches values that a
        device still computes.

        >>> mon.flush(timeout=10)
        True
        """
        try:
            seconds = arguments.seconds("timeout", timeout)
        except (TypeError, ValueError) as error:
            self._adapter.coverage.say_once(f"flush() waits for nothing: {error}")
            return False
        if os.getpid() != self._process:
            return False
        deadline = time.monotonic() + seconds
        if self._ended is None and threading.get_ident() == self._thread:
            try:
                if self._adapter.late.part.on:
                    self._adapter.late.drain(seconds)
            except Exception as error:
                pass_on(error)
                self._adapter.late.part.failed(error)
        return self._core.flush(max(deadline - time.monotonic(), 0.0))

    def pause(self) -> None:
        """Records nothing until resume(); hooks stay, steps go on being counted.

        >>> mon.pause()
        >>> optimizer.step()
        >>> mon.health()["rows_produced"]  # as before this step
        2
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Records again, from the next step on.

        >>> mon.pause()
        >>> mon.resume()
        >>> model(torch.ones(8, 4)).sum().backward()
        >>> optimizer.step()
        >>> mon.health()["rows_produced"]
        4
        """
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        if self._ended is None:
            self._adapter.set_paused(paused)

    # --- the end ---------------------------------------------------------------------------------

    def stop(self) -> dict[str, Any]:
        """Takes every hook off, writes what is left within stop_timeout_seconds, and returns the
        health. Calling it again does nothing.

        >>> mon.stop() == mon.stop()
        True
        """
        if self._ended is not None or os.getpid() != self._process:
            return self._ended or {}
        self._ended = {}  # a hook that calls stop() again comes back at once
        _at_work.discard(self)
        adapter = self._adapter
        try:
            if not self._recorded or adapter.coverage.begins_late():
                self._say_nothing_recorded("the whole run")
            adapter.remove()
        except Exception as error:
            adapter.steps_part.failed(error)
        finally:  # also when the user's signal handler raises meanwhile
            self._ended = self._core.stop()
            if self._alerts is not None:
                self._alerts.finish()
            adapter.forget()
            self._say(stop_line(self._core, self._ended, self._is_chosen(), self.directory))
        return self._ended

    # --- what is said ----------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self._speaks:
            say(f"trainmon: {text}")

    def _check_volume(self, config: dict, rows: int, who: dict) -> None:
        self._chosen = config["ranks"]
        self._volume = Volume(config, rows, who)

    def _step_ended(self, recorded: bool) -> None:
        """Called when the clock's optimizer has stepped."""
        self._steps += 1
        if recorded and not self._recorded:
            self._recorded = True
            if not self._adapter.coverage.begins_late():
                self._say_nothing_recorded("the first step")
            self._adapter.coverage.after_first_step()
        if self._steps == STEPS_TO_TIME:
            if text := self._volume.warning((time.monotonic() - self._since) / STEPS_TO_TIME):
                self._say(text)

    def _switched(self, new_hooks: bool) -> None:
        """A change of control.json holds; new hooks may give nothing again."""
        self._recorded = self._recorded and not new_hooks

    def _is_chosen(self) -> bool:
        return not self._chosen or self._core.rank in self._chosen

    def _say_nothing_recorded(self, when: str) -> None:
        if self._is_chosen() and self._core.health()["rows_produced"] == 0:
            self._say(f"NOTHING WAS RECORDED in {when}: {self._adapter.coverage.why_nothing()}")
