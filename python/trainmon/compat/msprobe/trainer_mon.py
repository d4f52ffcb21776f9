# TrainerMon: msprobe's monitor, its arguments and fields put into the words of trainmon. What depends on
# the framework is in pytorch/ and mindspore/.
from __future__ import annotations

import json
import os

from trainmon.base.console import log
from trainmon.base.signals import pass_on
from trainmon.compat.msprobe import config as fields
from trainmon.compat.msprobe import directory, structure
from trainmon.compat.msprobe.arguments import arguments
from trainmon.compat.msprobe.config_file import ConfigFile
from trainmon.compat.msprobe.summary_writer import SummaryWriter
from trainmon.config import config_json
from trainmon.monitor import Watch

WAIT = 10.0  # seconds for the writer, where its files or rows are asked for


class MonitorExit(Exception):
    """Ends training where print_struct or cc_log_only asked for it, on all ranks."""


class Face:
    """The monitor of msprobe's manual: construct it early, then set_monitor().

    config_file_path       JSON; every field of the manual
    process_group          the pipeline's group, which orders anomalies of ranks
    params_have_main_grad  read gradients from an attribute main_grad, where parameters have one
    opt_ty                 of old scripts; not needed

    TypeError, ValueError or RuntimeError names a bad field. Nothing is raised later, but for
    MonitorExit where the configuration asks for it.
    """

    def __init__(
        self, config_file_path, process_group=None, params_have_main_grad=True, opt_ty=None
    ):
        self.config_file_path = config_file_path
        self.params_have_main_grad = params_have_main_grad
        self._is_dynamic = os.environ.get("DYNAMIC_MONITOR", "False").lower() == "true"
        self._file = ConfigFile(config_file_path)
        found, content = fields.load(config_file_path)
        self.config = fields.checked(found)
        self._watch: Watch | None = None
        self._relay = None
        self._collected = 0
        self._model = self._optimizer = self._optimizers = self._wrapped = None
        self.step = 0  # number of the step under way or to come
        self._steps_seen = 0
        self._follows = False  # a configuration of the file holds since the end of a step
        self._base = directory.base()  # whatever becomes of the environment or the working folder
        self._group = process_group
        self._place()
        if self._is_dynamic:
            self._file.content = None  # the first look is at the end of the first step
        else:
            self._file.content = content

    @property
    def _structure(self):
        return self._base / "module_struct" / f"rank{self.rank}"

    def __reduce__(self):
        # A trainer that keeps a TrainerMon can be copied and saved: without it.
        return type(None), ()

    def _place(self) -> None:
        """Which rank this is, and so which directory. Again in set_monitor() if there was no
        process group yet: scripts are told to construct the monitor early."""
        self._is_distributed = self._distributed()
        self.rank, self.pp_stage, self.group_mates = 0, 0, [0]
        if self._is_distributed:
            self.rank, self.pp_stage, self.group_mates = self._ranks()
        self._directory = directory.fresh(self._base, self.rank)
        if self.config["append_output"] and self._is_distributed:
            times = self.config["append_output"]
            self._directory = directory.continued(self._base, self.rank, times)

    # --- attaching -------------------------------------------------------------------------------

    def set_monitor(self, model, *args, **keys) -> None:
        """set_monitor(model, grad_acc_steps, optimizer, dp_group=None, tp_group=None,
        start_iteration=0), or with optimizer before grad_acc_steps=1, tp_group, dp_group.
        `model` may be a list of chunks (virtual pipeline stages)."""
        taken = arguments(args, keys)
        if taken["optimizer"] is None:
            raise TypeError("set_monitor() needs an optimizer")
        if self._relay is not None:
            log.warning("trainmon: set_monitor() was called before: the new model is watched now")
            self.stop()
        if not self._is_distributed and self._distributed():
            self._place()
        self._model = self._chunks(model)
        # Files are written when the first one's window has ended.
        self._optimizers = self._inner_optimizers(taken["optimizer"])
        self._optimizer = self._optimizers[0]
        self._grad_acc_steps = taken["grad_acc_steps"]
        self._dp_group, self._tp_group = taken["dp_group"], taken["tp_group"]
        self.step = taken["start_iteration"]
        self._steps_seen = 0
        self._relay = self._new_relay()
        if self._is_dynamic:
            return
        try:
            self._start(self.config["start_step"])
        except BaseException:
            self.stop()
            raise

    def set_wrapped_optimizer(self, optimizer) -> None:
        """Of old scripts: the optimizer for monitor_gnorm_with_ad()."""
        self._wrapped = optimizer

    def monitor_gnorm_with_ad(self, model, *args, **keys) -> None:
        """Of old scripts: set_monitor(), the optimizer perhaps from set_wrapped_optimizer()."""
        taken = arguments(args, keys)
        if taken["optimizer"] is None:
            taken["optimizer"] = self._wrapped
        if taken["optimizer"] is None:
            log.error("trainmon: no optimizer: pass one, or call set_wrapped_optimizer() first")
            return
        self.set_monitor(model, **taken)

    def _start(self, start_step: int) -> None:
        """Puts the monitor on for the configuration that holds now, from this step on."""
        config = self.config
        self._collected = 0
        if config["module_ranks"] and self.rank not in config["module_ranks"]:
            return
        if config["collect_times"] == 0:
            return
        kinds = fields.kinds(config)
        describes = config["print_struct"]
        if describes:
            kinds = ["actv", "actv_grad"]
        if not kinds:
            log.warning("trainmon: nothing is monitored: no field such as wg_distribution is true")
            return
        settings = {
            "kinds": kinds,
            "start_step": 0 if describes else start_step,
            "start_iteration": self.step,
            "every": 1 if describes else config["step_interval"],
            "eps": float(config["eps"]),
            "grad_acc_steps": self._grad_acc_steps,
            "moments_at": "before_step",
            "sinks": [],
            "allow_volume": True,
        }
        if config["cc_distribution"]["enable"]:
            settings["collective_inputs"] = config["cc_distribution"]["cc_pre_hook"]
            settings["collective_callers"] = config["cc_distribution"]["cc_codeline"]
        adapter = self._new_adapter()
        adapter.logs_collectives = config["cc_distribution"]["cc_log_only"]
        self._watch = Watch(adapter, config_json(settings), self._parts(describes))
        adapter.on_step = self._count

    def _parts(self, describes: bool) -> dict:
        config = self.config
        parts = {
            "directory": str(self._directory),
            "msprobe": {
                "ops": config["ops"],
                "ndigits": config["ndigits"],
                "steps_per_file": config["step_count_per_record"],
                "grad_acc_steps": self._grad_acc_steps,
                "micro_gradients": config["monitor_mbs_grad"],
                "files": config["format"] != "api" and not describes,
                "events": config["format"] == "tensorboard",
            },
            "rules": fields.rules(config),
        }
        if describes:
            parts["directory"] = str(self._structure)
        if config["alert"]["dump"]:
            parts["anomaly"] = {
                "base": str(self._base),
                "pp_stage": self.pp_stage,
                "group_mates": self.group_mates,
            }
        return parts

    # --- while training --------------------------------------------------------------------------

    def _count(self, recorded: bool) -> None:
        self._watch._step_ended(recorded)
        self._collected += recorded

    def _step_begins(self) -> None:
        """May raise: the ends of training that the configuration asks for."""
        is_on = self._follows if self._is_dynamic else self._steps_seen == 0
        if self.config["print_struct"] and is_on:
            self._describe()
        collectives = self.config["cc_distribution"]
        if collectives["enable"] and self._steps_seen == 1 and not self._is_dynamic:
            self._tell_collectives(collectives["cc_log_only"])

    def _describe(self) -> None:
        watch = self._watch
        if watch is not None:
            try:
                self._settle()
                core = watch._core
                tensors = {kind: core.msprobe_tensors(kind) for kind in ("actv", "actv_grad")}
                path = structure.write(self._structure, structure.structure(tensors))
                log.warning("trainmon: the structure of the model is in %s", path)
            except Exception as error:
                pass_on(error)
                log.error("trainmon: the structure was not written: %s", error)
        self.stop()
        raise MonitorExit("exit after first monitor step when print model struct")

    def _tell_collectives(self, ends: bool) -> None:
        watch = self._watch
        collectives = watch._adapter.collectives if watch is not None else None
        allowed = self.config["module_ranks"] or [0]
        try:
            if collectives is not None and self.rank == min(allowed):
                log.warning("trainmon: > Used communication ops and corresponding stack")
                log.warning("trainmon: %s", json.dumps(collectives.seen()))
        except Exception as error:
            pass_on(error)
            log.error("trainmon: the collectives cannot be told: %s", error)
        if ends:
            self.stop()
            raise MonitorExit("exit after first step when print cc stack")

    def _step_ended(self) -> None:
        watch = self._watch
        self._steps_seen += 1
        self.step = watch._core.step(0) if watch is not None else self.step + 1
        if watch is not None and self._collected >= self.config["collect_times"]:
            self._finish()
        if self._is_dynamic:
            self._follow_file()

    def _finish(self) -> None:
        self._unwatch()
        if not self._is_dynamic:
            return
        if self.rank == min(self.config["module_ranks"] or [0]):
            self._file.switch_off()
        self.config["dynamic_on"] = self._follows = False
        log.info(
            "trainmon: Finish monitor, set config'dynamic_on=False, will restart by set it to True "
            "and update config"
        )

    def _follow_file(self) -> None:
        config = self._file.changed()
        if config is None:
            return
        self._follows = config["dynamic_on"]
        if not config["dynamic_on"]:
            self._unwatch()
            self.config = config
            return
        log.warning(
            "trainmon: config is updated at step%d, will start new hook at step%d.",
            self.step - 1,
            self.step,
        )
        was_on = self._watch is not None
        self._unwatch()
        before, self.config = self.config, config
        try:
            self._start(self.step)
        except Exception as error:
            pass_on(error)
            log.error("trainmon: the new config cannot be applied: %s", error)
            self.config, self._follows = before, before["dynamic_on"] and was_on
            if self._follows:
                log.error("trainmon: the one before it goes on")
                self._start(self.step)

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        if self._relay is not None:
            self._relay.forget()

    def stop(self) -> None:
        """Takes every hook off and writes what is left. Nothing of the monitor remains."""
        self._unwatch()
        if self._relay is not None:
            self._relay.remove()
            self._relay = None
        self._model = self._optimizer = self._optimizers = self._wrapped = None

    # --- changing and asking ---------------------------------------------------------------------

    @property
    def ops(self) -> list[str]:
        """The statistics written; assign to change them from this step on."""
        return [*self.config["ops"], "shape", "dtype"]

    @ops.setter
    def ops(self, names) -> None:
        self.config["ops"] = fields.ops(names)
        if self._watch is not None:
            self._watch._core.set_msprobe_ops(self.config["ops"])

    @property
    def summary_writer(self) -> SummaryWriter:
        return SummaryWriter(self)

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Switches activations on or off, from the next step on. Edit the file in dynamic mode
        instead: this goes with the next release of msprobe."""
        log.warning("trainmon: reload_xy is going to be dropped: use dynamic mode")
        if self._relay is None or self.config["xy_distribution"] == bool(xy_distribution):
            return
        before, collected = self.config, self._collected
        changed = {**before, "xy_distribution": bool(xy_distribution)}
        if changed["xy_distribution"] and not changed["targets"]:
            changed["all_xy"] = True
        self.config = changed
        if collected >= changed["collect_times"] or (
            self._is_dynamic and not changed["dynamic_on"]
        ):
            return
        self._unwatch()
        try:
            self._start(self.config["start_step"])
        except Exception as error:
            pass_on(error)
            log.error("trainmon: activations cannot be switched: %s", error)
            self.config = before
        self._collected = collected

    def generate_wgrad_metrics(self, *_) -> tuple[dict, dict]:
        """(reduced, unreduced): {"0:fc.weight/rank0/post_grad": {"norm": tensor, ...}} of the newest
        gradients there are. Reads those of the parameters now, if the optimizer has not yet."""
        return self._answer(lambda: (self._reduced(), self._metrics("grad_unreduced")))

    def _answer(self, ask) -> tuple[dict, dict]:
        if self._watch is None:
            return {}, {}
        try:
            return ask()
        except Exception as error:
            pass_on(error)
            log.error("trainmon: no metrics: %s: %s", type(error).__name__, error)
            return {}, {}

    def generate_xy_metrics(self) -> tuple[dict, dict]:
        """(actv, actv_grad) of the forwards and backwards since the last step, or of that step."""
        return self._answer(lambda: (self._metrics("actv"), self._metrics("actv_grad")))

    def _settle(self) -> None:
        watch = self._watch
        watch._adapter.late.drain(WAIT)
        watch._core.settle(WAIT)

    def _metrics(self, kind: str) -> dict:
        self._settle()
        return self._as_metrics(self._watch._core.msprobe_tensors(kind), self.config["ops"])

    # --- what the framework knows ----------------------------------------------------------------

    def _distributed(self) -> bool:
        """Whether there are several processes, as far as is known now."""
        raise NotImplementedError

    def _ranks(self) -> tuple[int, int, list[int]]:
        """This rank, its rank in the pipeline's group, and the ranks of that group."""
        raise NotImplementedError

    def _chunks(self, model) -> list:
        raise NotImplementedError

    def _inner_optimizers(self, optimizer) -> list:
        """At least one; raises TypeError for several that are not one optimizer to the user."""
        raise NotImplementedError

    def _new_relay(self):
        """Calls _step_begins and _step_ended of the optimizer, until its remove()."""
        raise NotImplementedError

    def _new_adapter(self):
        """For the configuration, model and optimizer that hold now."""
        raise NotImplementedError

    def _reduced(self) -> dict:
        """Metrics of the newest reduced gradients."""
        return self._metrics("grad_reduced")

    def _as_metrics(self, rows, ops: list[str]) -> dict:
        raise NotImplementedError
