# ColossalAIMonitor: its configuration and names put into the words of trainmon.
from __future__ import annotations

import fcntl
import os
import pathlib
import sys

import torch

from trainmon.base.console import log, say
from trainmon.base.names import as_text
from trainmon.compat.colossalai import config as fields
from trainmon.config import config_json
from trainmon.monitor import Watch
from trainmon.torch.adapter import Adapter
from trainmon.torch.modules.selection import Selection
from trainmon.torch.steps.declared import DeclaredSteps
from trainmon.torch.steps.optimizers import NoOptimizer
from trainmon.torch.wrappers.chunks import chunks_of

# What the wrapper of a model is called here, by the modes it contradicts.
NOT_REDUCED = ("plain",)
SHARDED = ("dtensor", "fsdp2", "colossalai low level zero 1", "colossalai low level zero 2")


class ColossalAIMonitor:
    """Statistics of gradients before (local) and after (global) their reduction.

        monitor = ColossalAIMonitor("monitor_config.json")
        monitor.monitor(model)                       # wrapped by DistributedDataParallel or the like
        ...  loss.backward(); optimizer.step(); monitor.step_end(model)
        monitor.stop()

    Relative output paths start from the folder of the script. Bad configurations raise
    FileNotFoundError, TypeError or ValueError here, files that cannot be made RuntimeError in
    monitor(); later nothing is raised.
    """

    def __init__(self, config_path=None):
        self.config = fields.checked(fields.load(config_path))
        self.parallel_mode = self.config["parallel_mode"]
        self.param_list = self.config["param_list"]
        self.write_interval = self.config["write_interval"]
        folder = pathlib.Path(script_folder(), self.config["output_dir"])
        self.output_file_local = str(folder / self.config["output_file_local"])
        self.output_file_global = str(folder / self.config["output_file_global"])
        self._folder = folder
        self._steps_before = 0  # of earlier models
        self._watch: Watch | None = None
        self._declared: DeclaredSteps | None = None
        self._told = False
        self._lock = -1  # descriptor of the folder that is ours
        self.rank, self.world_size = _place()

    def __reduce__(self):
        # A trainer that keeps one can be copied and saved: without it.
        return type(None), ()

    @property
    def global_step(self) -> int:
        """How often step_end() was called: the number of the step under way."""
        return self._steps_before + (self._declared.count if self._declared is not None else 0)

    def monitor(self, model) -> None:
        """Puts hooks on the parameters of the model that require gradients."""
        roots = chunks_of(model)
        if self._watch is not None:
            log.warning("trainmon: monitor() was called before: the new model is watched now")
            self._unwatch()
        self.rank, self.world_size = _place()
        optimizer = NoOptimizer(roots)
        declared = DeclaredSteps(reduce_shards=self.config["reduce_shards"])
        try:
            adapter = Adapter(roots, optimizer, None, Chosen(roots, self.param_list), declared)
            settings = {
                "kinds": ["grad_micro", "grad_reduced"],
                "every": 1,
                "start_iteration": self.global_step,
                "sinks": [],
                "allow_volume": True,
            }
            self._watch = Watch(adapter, config_json(settings), self._parts())
        except BaseException:
            declared.remove()
            self._unlock()
            raise
        self._declared = declared
        if not any(parameter.selected for parameter in adapter.parameters):
            log.warning("trainmon: nothing is watched: no parameter chosen requires gradients")
        self._judge_mode(adapter.wrappers)

    def _own_folder(self) -> str:
        """Where this monitor's facts go: none that another one, of any process, writes into."""
        first = folder = self._folder / "grad_stats_runs" / f"rank{self.rank}"
        for number in range(2, 100):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(folder, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                self._unlock()
                folder = first.with_name(f"{first.name}.{number}")
            except OSError:  # no locks there; what cannot be written the core will say
                break
        if folder != first:
            log.warning(
                "trainmon: another ColossalAIMonitor of rank %s is at work in %s. The rows of both mix "
                "if their files are the same; health.json of this one is in %s",
                self.rank,
                self._folder,
                folder,
            )
        return str(folder)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            try:
                fcntl.flock(lock, fcntl.LOCK_UN)  # forked processes have the descriptor, too
            except OSError:
                pass
            os.close(lock)

    def _parts(self) -> dict:
        return {
            "directory": self._own_folder(),
            "grad_stats": {
                "local": self.output_file_local,
                "global": self.output_file_global,
                "stats": self.config["stats"],
                "write_interval": self.config["write_interval"],
            },
        }

    def _judge_mode(self, wrappers) -> None:
        """What is measured follows from the model; the mode says what the user believes it is."""
        if self.rank != 0 or self.world_size == 1:
            return
        names = {wrapper.name for wrapper in wrappers}
        mode = self.parallel_mode
        if mode in ("dp", "zero1") and names.issubset(NOT_REDUCED):
            log.warning(
                "trainmon: parallel_mode is %s, but nothing in the model reduces gradients (no "
                "DistributedDataParallel, no fully_shard): global values are those of each rank",
                mode,
            )
        if names & set(SHARDED) and not self.config["reduce_shards"]:
            log.warning(
                "trainmon: parameters are sharded: each rank's global values are those of its part "
                "(reduce_shards: true merges them, by a small all_gather beside the training)"
            )

    def step_end(self, model=None) -> None:
        """A training step is over. Call it after optimizer.step(); gradients may be cleared."""
        if self._declared is not None:
            self._declared.end()
        elif not self._told:
            self._told = True
            log.warning("trainmon: step_end() without monitor(model): nothing is recorded")

    def stop(self) -> None:
        """Takes every hook off and writes what is left. Nothing of the monitor remains."""
        watch, shards = self._watch, getattr(self._declared, "shards", None)
        self._unwatch()
        if watch is None or self.rank != 0:
            return
        health = watch.health()
        missing = sum(sum(sink["rows_dropped"].values()) for sink in health.get("sinks", ()))
        missing += sum(health.get("refused", {}).values())  # sparse ones, say
        lost = f"; {missing} rows of rank 0 are missing (health.json)" if missing else ""
        if shards is not None and shards.alone:
            lost += f"; {shards.alone} global rows of rank 0 are of its shards ({shards.why})"
        say(
            f"trainmon: gradient statistics are in {self.output_file_local} and "
            f"{self.output_file_global}{lost}"
        )

    def _unwatch(self) -> None:
        self._steps_before = self.global_step
        watch, self._watch = self._watch, None
        declared, self._declared = self._declared, None
        if declared is not None:
            declared.settle()
        if watch is not None:
            watch.stop()
        if declared is not None:
            declared.remove()
        self._unlock()


class Chosen(Selection):
    """What param_list names, as named_parameters() or without the components that wrappers add; all
    that require gradients if it is empty. Rows bear the name of named_parameters()."""

    names_as_compiled = False

    def __init__(self, roots, wanted: list[str]):
        self.wanted = set(wanted)
        self.roots = roots
        self.names: dict[int, str] = {}

    def parameter(self, parameter) -> bool:
        if not parameter.tensor.requires_grad:
            return False
        names = {self.label(parameter), parameter.name, *parameter.aliases}
        return not self.wanted or bool(names & self.wanted)

    def label(self, parameter) -> str:
        if id(parameter.tensor) not in self.names:
            for root in self.roots:
                for name, tensor in root.named_parameters():
                    self.names[id(tensor)] = name
        return self.names.get(id(parameter.tensor), parameter.name)

    def model_changed(self) -> None:
        self.names.clear()

    def check(self, parameters, roots, not_covered) -> None:
        known = {name for p in parameters for name in (self.label(p), p.name, *p.aliases)}
        for name in sorted(self.wanted - known):
            log.warning("trainmon: param_list: no parameter is called %r", as_text(name))


def script_folder() -> str:
    """Where the script that runs is; the working folder for python -m, -c and notebooks."""
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if script is None or getattr(main, "__spec__", None) is not None:
        return os.getcwd()
    return os.path.dirname(os.path.abspath(script))


def _place() -> tuple[int, int]:
    """Rank and number of ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
