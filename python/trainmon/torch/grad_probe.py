# trainmon.GradProbe: per step what the gradients are like, and the sign of every element.
from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Iterable

import torch
from torch import nn

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.torch import given
from trainmon.torch.contract import as_text, dtype_name
from trainmon.torch.hooks import Part, log
from trainmon.torch.step_calls import Owners, StepCalls

LEVELS = ("L0", "L1", "L2")
SIGNS = ("packed", "npy", "none")
OVERFLOWS = ("drop_newest", "drop_oldest", "block")
LEAST_QUEUE = 64.0  # MB
STOP_TIMEOUT = 60.0  # seconds for the disk; a step is worth having as a whole

_at_work: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for probe in list(_at_work):
        probe.stop()


class GradProbe:
    """Looks at the gradients of a model each time its optimizer steps, until stop(), the end of a
    `with` block or the end of the process. Files (docs/formats.md):

        {out}/rank{rank}/grad_summary_{step}.csv
        {out}/rank{rank}/step{step}/{parameter}.sign or .npy

    model      a torch.nn.Module, not one that torch.jit.trace or torch.jit.script made
    optimizer  its optimizer, or a list or dict of several: the parameters that these have; None: every
               one that has parameters of it
    out        the output directory; files of the same name are replaced
    level      L0: a digest, max, min, norm and shape of each gradient. L1: signs instead of the
               digest. L2: also the share of elements in each interval, and of zeros
    bounds     numbers in ascending order that part the intervals of L2
    params     names of the parameters to look at, empty for all
    steps      the steps to look at, empty for all. A step of a parameter is a call of step() of an
               optimizer that has it, counted from 0
    ranks      the ranks to look at, of several; empty for all. Where no launcher such as torchrun
               tells them, a process has its rank from init_process_group() on
    signs      packed (a bit per element), npy (a byte, as NumPy reads it) or none
    ternary    signs of three values: zero is not negative
    digest     fast64 (of L0, if unset), md5, crc32 or none (if unset elsewhere); md5 and crc32 are
               those of the elements as float32
    threads    that measure one large tensor
    overflow   what happens when the disk is slower than the steps: drop_newest and drop_oldest leave
               out steps, and count them; block waits

    A gradient is main_grad where a parameter has that, else grad; as the optimizer sees it, so after
    clipping, and after the closure has run for the first time where there is one. Parameters without
    one have no line in that step. TypeError or ValueError names a bad argument, RuntimeError an
    output directory that cannot be made. After that nothing raises into training.
    """

    def __init__(
        self,
        model,
        optimizer=None,
        *,
        out: str | os.PathLike,
        level: str = "L1",
        bounds: Iterable[float] = (-1, 0, 1),
        params: Iterable[str] = (),
        steps: Iterable[int] = (),
        ranks: Iterable[int] = (),
        signs: str = "packed",
        ternary: bool = False,
        digest: str | None = None,
        threads: int = 1,
        overflow: str = "drop_newest",
    ):
        _check_model(model)
        level = checks.choice("level", level, LEVELS)
        signs = checks.choice("signs", signs, SIGNS)
        if digest is None:
            digest = "fast64" if level == "L0" else "none"
        digest = checks.choice("digest", digest, _core.DIGESTS)
        overflow = checks.choice("overflow", overflow, OVERFLOWS)
        ternary, threads = checks.flag("ternary", ternary), checks.threads(threads)
        bounds = _bounds(bounds)
        out = checks.path("out", out, is_utf8=True)
        optimizers = None if optimizer is None else list(given.optimizers(optimizer).values())
        self._params = checks.names("params", params, "names of parameters")
        self._steps = checks.counts("steps", steps)
        self.rank, world = _place()
        self.directory = os.path.join(os.path.abspath(out), f"rank{self.rank}")
        self._process, self._ended = os.getpid(), None
        self._core = self._calls = None
        ranks = checks.counts("ranks", ranks)
        if world > 1 and ranks and self.rank not in ranks:
            return
        self._model = weakref.ref(model)
        self._series: dict[str, int] = {}
        self._last: dict[str, int] = {}  # the last step of a parameter, by name
        self._told: set[str] = set()
        named = dict(model.named_parameters())
        planes = 0 if level == "L0" or signs == "none" else 2 if ternary else 1
        bits = planes * sum(p.numel() for p in named.values() if not _is_lazy(p))
        if older := _names_in(self.directory):
            steps_there = {name for name in older if name.startswith("grad_summary_")}
            self._say(
                f"{self.directory} exists: files of the same name are replaced in it; of the"
                f" {len(steps_there)} older steps, those that do not come again stay"
            )
        self._tell_unknown(named)
        settings = {
            "sinks": [],
            "threads": threads,
            "overflow": overflow,
            "queue_mb": max(LEAST_QUEUE, 2.5 * bits / 8 / 2**20),
            "stop_timeout_seconds": STOP_TIMEOUT,
        }
        part = {
            "intervals": level == "L2",
            "bounds": [float(bound) for bound in bounds],
            "bound_texts": [json.dumps(bound) for bound in bounds],
            "planes": planes,
            "npy": signs == "npy",
            "digest": digest,
            "digest_column": self._digest_column(digest),
        }
        self._core = _core.Monitor(
            json.dumps(settings),
            json.dumps({"rank": self.rank, "world_size": world}),
            json.dumps({"directory": self.directory, "grad_probe": part}),
        )
        self._part = Part(self._core, "grad probe")
        self._owners = Owners(optimizers)
        self._calls = StepCalls(optimizers, self._step_begins, self._failed)
        _at_work.add(self)

    def __reduce__(self):
        # A model or trainer that keeps a GradProbe can be copied and saved: without it.
        return type(None), ()

    def __enter__(self) -> GradProbe:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    def _digest_column(self, digest: str) -> str:
        return "" if digest == "none" else digest

    # --- while training --------------------------------------------------------------------------

    def _step_begins(self, optimizer) -> None:
        model = self._model()
        if model is None or not self._part.on:
            return
        named = dict(model.named_parameters())
        names = self._owners.of(optimizer, named)
        if not names:
            return
        last = self._last
        step = 1 + max(last.get(name, -1) for name in names)
        last.update(dict.fromkeys(names, step))
        if self._steps and step not in self._steps:
            return
        if self._params:
            names = [name for name in names if name in self._params]
        found = [(name, _gradient(named[name])) for name in names]
        found = [(name, gradient) for name, gradient in found if gradient is not None]
        gradients = [_here(gradient) for _, gradient in found]
        series = [self._series_of(n, g) for (n, _), g in zip(found, gradients, strict=True)]
        for index, reason in _core.probe_gradients(self._core, series, gradients, step):
            self._tell(reason, f"gradient of {found[index][0]} is not measured: {reason}")

    def _series_of(self, name: str, gradient) -> int:
        series = self._series.get(name)
        if series is None:
            wanted = {"kind": "grad_reduced", "name": as_text(name)}
            try:
                series = self._core.add_series(dtype=dtype_name(gradient), **wanted)
            except ValueError:  # a dtype that is refused, by name, when it is looked at
                series = self._core.add_series(**wanted)
            self._series[name] = series
        return series

    def _failed(self, error: Exception) -> None:
        self._part.failed(error)

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(text + "; further ones are only counted (health.json)")

    def _say(self, text: str) -> None:
        log.warning("trainmon: grad probe: %s", text)

    def _tell_unknown(self, named: dict) -> None:
        unknown = sorted(self._params - named.keys())
        if unknown:
            few = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            self._say(f"the model has no parameter {few}: nothing is written for it")

    # --- the end ---------------------------------------------------------------------------------

    def health(self) -> dict:
        """Rows (one per parameter and step) produced, written and dropped, and why."""
        if self._core is None:
            return {}
        return self._ended or self._core.health()

    def flush(self, seconds: float = 30.0) -> bool:
        """Waits until the files of all steps so far are written; False if that took longer."""
        seconds = checks.seconds("seconds", seconds)
        return self._core is None or self._ended is not None or self._core.settle(seconds)

    def stop(self) -> dict:
        """Takes the hooks off, writes what is left and returns the health. Calling it again does
        nothing."""
        if self._core is None or self._ended is not None or os.getpid() != self._process:
            return self._ended or {}
        self._ended = {}
        _at_work.discard(self)
        self._calls.remove()
        self._ended = self._core.stop()
        if self._ended["rows_produced"] == 0:
            self._say("nothing was written: no optimizer stepped that has parameters of the model")
        (sink,) = self._ended["sinks"]
        if dropped := sum(sink["rows_dropped"].values()):
            self._say(
                f"{dropped} of {self._ended['rows_produced']} rows could not be written: "
                + ", ".join(f"{rows} {why}" for why, rows in sorted(sink["rows_dropped"].items()))
            )
        return self._ended


def _check_model(model) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"model must not be one that torch.jit.trace or torch.jit.script made "
            f"({type(model).__name__}): pass the module it was made from"
        )


def _bounds(bounds) -> list:
    bounds = checks.real_numbers("bounds", bounds)
    for bound in bounds:
        if not -(2**63) <= bound < 2**63:  # no NaN either
            raise ValueError(f"bounds must be from -2**63 to 2**63 - 1, not {bound!r}")
    for low, high in zip(bounds, bounds[1:]):
        if float(low) >= float(high):
            raise ValueError(f"bounds must ascend: {high!r} follows {low!r}")
    return bounds


def _names_in(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _place() -> tuple[int, int]:
    """(rank, number of ranks), from the launcher's environment before there is a process group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    ranks = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    if all(text.isdecimal() for text in ranks) and int(ranks[0]) > 1:
        return int(ranks[1]), int(ranks[0])
    return 0, 1


def _gradient(parameter):
    main = getattr(parameter, "main_grad", None)
    return parameter.grad if main is None else main


def _here(gradient):
    """The shard of this rank, on the CPU: until there are kernels for other devices, elements are
    copied from there."""
    if hasattr(gradient, "to_local"):
        with torch.no_grad():
            gradient = gradient.to_local()
    if gradient.is_cpu or gradient.is_meta:
        return gradient
    return gradient.detach().to("cpu")


def _is_lazy(parameter) -> bool:
    return isinstance(parameter, nn.parameter.UninitializedParameter)
