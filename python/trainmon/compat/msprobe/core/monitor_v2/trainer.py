# TrainerMonitorV2: msprobe's Monitor V2, its configuration put into the words of trainmon. What depends on
# the framework is in pytorch/monitor_v2.py.
from __future__ import annotations

import importlib
import json
import os

from trainmon.base.console import log
from trainmon.compat.msprobe import config as files
from trainmon.compat.msprobe import monitor_v2_config as fields
from trainmon.config import config_json
from trainmon.monitor import Watch


class TrainerMonitorV2:
    """The monitor of msprobe's manual: construct it, start() it, call step() once per step, stop() it.

    config_path  JSON; every field of the manual
    fr           pytorch, pt or torch; in place of the field `framework`

    RuntimeError, TypeError or ValueError names a bad file or field, and start() what it lacks. Nothing
    is raised later.
    """

    def __init__(self, config_path: str, fr: str | None = None) -> None:
        self.config_path = config_path
        self.config, _ = files.load(config_path)
        checked = fields.checked(self.config, fr)
        self._checked = checked
        self.framework = checked["framework"]
        if self.framework != "pytorch":
            raise ValueError(
                "framework: Monitor V2 is here for pytorch; for mindspore use TrainerMon"
            )
        self._framework = importlib.import_module("trainmon.compat.msprobe.pytorch.monitor_v2")
        self.rank = self._framework.rank()
        self.start_step = checked["start_step"]
        self.step_interval = checked["step_interval"]
        self.step_count_per_record = checked["step_count_per_record"]
        self.collect_times = checked["collect_times"]
        self.stop_step = checked["stop_step"]
        if self.stop_step is None:
            self.stop_step = self.start_step + self.collect_times * self.step_interval
        self.output_dir = checked["output_dir"]
        self._base = os.path.abspath(self.output_dir)  # whatever becomes of the working folder
        self.current_step = 0  # number of the step under way or to come
        self._collected = 0
        self._watch: Watch | None = None
        self._steps = None  # says when a step ends
        self._by_optimizer = False
        self._told = False
        if checked["async_write"]:
            log.info("trainmon: async_write: files are always written by a thread of their own")

    def __reduce__(self):
        return type(None), ()  # a trainer that keeps one can be copied and saved: without it

    def start(self, model=None, optimizer=None, **context) -> None:
        """Puts the monitors on. `model` may be a list; `context` may hold grad_acc_steps or
        micro_batch_number."""
        self.rank = self._framework.rank()
        if self._steps is not None or not self._is_target_rank():
            return
        model = context.get("model") if model is None else model
        optimizer = context.get("optimizer") if optimizer is None else optimizer
        monitors = dict(self._checked["monitors"])
        if "cc" in monitors and not self._framework.has_collectives(self.rank, monitors["cc"]):
            del monitors["cc"]
        for name, needs_model, needs_optimizer in (
            ("module", True, False),
            ("weight_grad", False, True),
            ("optimizer", True, True),
            ("param", True, True),
        ):
            for what, is_needed, found in (
                ("model", needs_model, model),
                ("optimizer", needs_optimizer, optimizer),
            ):
                if name in monitors and is_needed and found is None:
                    raise ValueError(f"start() needs {what}= for the monitor {name!r}")
        if model is None and optimizer is None:
            raise ValueError("start() needs model= or optimizer=")
        patched = self._checked["patch_optimizer_step"]
        self._by_optimizer = optimizer is not None and (patched is None or bool(patched))
        self._steps = self._framework.steps(model, optimizer, self._step_ended)
        try:
            self._put_on(monitors, model, optimizer, context)
        except BaseException:
            self.stop()
            raise

    def _put_on(self, monitors: dict, model, optimizer, context: dict) -> None:
        gradients = monitors.get("weight_grad", {})
        micro = fields.micro_steps(gradients, context)
        shown = []
        for name, own in monitors.items():
            if own.get("mv_distribution", True) and own.get("param_distribution", True):
                shown.append(
                    {
                        "name": name,
                        "kinds": fields.KINDS[name],
                        "ops": own["ops"],
                        "by_kind": name != "module",
                    }
                )
        if not shown or self.current_step >= self.stop_step:
            log.warning("trainmon: nothing is monitored: no monitor is enabled")
            return
        settings = {
            "kinds": [kind for one in shown for kind in one["kinds"]],
            "start_step": self.start_step,
            "start_iteration": self.current_step,
            "every": self.step_interval,
            "grad_acc_steps": micro,
            "sinks": [],
            "allow_volume": True,
        }
        collectives = monitors.get("cc")
        if collectives is not None:
            settings["collective_inputs"] = collectives["cc_pre_hook"]
            settings["collective_callers"] = collectives["cc_codeline"]
        targets = monitors.get("module", {}).get("targets", [])
        adapter = self._framework.adapter(model, optimizer, targets, self._steps)
        adapter.logs_collectives = collectives is not None and collectives["cc_log_only"]
        parts = {
            "directory": os.path.join(self._base, f"rank_{self.rank}"),
            "msprobe": {
                "ops": [],
                "ndigits": None,
                "steps_per_file": self.step_count_per_record,
                "first_step": self.start_step,
                "grad_acc_steps": micro,
                "micro_gradients": gradients.get("monitor_mbs_grad", False),
                "monitors": shown,
                "chunk_names": isinstance(model, (list, tuple)),
            },
        }
        self._watch = Watch(adapter, config_json(settings), parts)
        adapter.on_step = self._count

    # --- while training --------------------------------------------------------------------------

    def step(self, from_optimizer: bool = False) -> None:
        """A step is over. Steps of the optimizer are seen without it."""
        if self._steps is None or not self._is_target_rank():
            return
        if not self._steps.is_declared:
            if self._by_optimizer and not self._told:
                self._told = True
                log.warning(
                    "trainmon: step() is not needed: the steps of the optimizer given to start() count"
                )
            return
        self._steps.end()
        self._step_ended()

    def _count(self, recorded: bool) -> None:
        self._watch._step_ended(recorded)
        self._collected += recorded

    def _step_ended(self) -> None:
        watch = self._watch
        self.current_step = self.current_step + 1 if watch is None else watch._core.step(0)
        if watch is None:
            return
        collectives = watch._adapter.collectives
        if self.current_step == 1 and collectives is not None and watch._adapter.logs_collectives:
            log.warning("trainmon: > Used communication ops and corresponding stack")
            log.warning("trainmon: %s", json.dumps(collectives.seen()))
        if self._collected >= self.collect_times or self.current_step >= self.stop_step:
            self._unwatch()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        if self._steps is not None:
            self._steps.forget()

    def stop(self) -> None:
        """Takes every hook off and writes what is left."""
        self._unwatch()
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.remove()

    def _is_target_rank(self) -> bool:
        return not self._checked["rank"] or self.rank in self._checked["rank"]
