# trainmon.GradProbe: per step what the gradients are like, and the sign of every element.
from __future__ import annotations

import os
import weakref
from collections.abc import Iterable

import torch
from torch import nn

from trainmon import _core
from trainmon.base.console import log
from trainmon.base.grad_probe import at_work, core_of_probe
from trainmon.base.locks import fork_safe_lock
from trainmon.base.names import as_text
from trainmon.base.parts import Part
from trainmon.base.signals import pass_on
from trainmon.checks import arguments as checks
from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.probe import output_directory
from trainmon.torch.probe.gradients import gradient_of, on_cpu
from trainmon.torch.probe.outermost_calls import Owners, StepCalls
from trainmon.torch.steps.optimizers import torch_optimizers

LEVELS = ("L0", "L1", "L2")
SIGNS = ("packed", "npy", "none")
OVERFLOWS = ("drop_newest", "drop_oldest", "block")
# Why nothing was written: how far the steps got, the last of these holds.
NO_STEP, SKIPPED, OTHER_STEPS, OTHER_PARAMS, NO_GRADIENT, REFUSED = range(6)
WHY_NOTHING = (
    "no optimizer stepped that has parameters of the model",
    "GradScaler skipped every step",
    "no step was one of those asked for",
    "no optimizer that stepped has one of the parameters asked for",
    "no parameter had a gradient",
    "no gradient could be measured (health.json: refused)",
)


class GradProbe:
    """Looks at the gradients of a model each time its optimizer steps. It ends with stop(), with a
    `with` block or with the process. Files (docs/formats.md):

        {out}/rank{rank}/grad_summary_{step}.csv
        {out}/rank{rank}/step{step}/{parameter}.sign or .npy

    model      a torch.nn.Module, not one that torch.jit.trace or torch.jit.script made
    optimizer  its optimizer, or a list or dict of several: the parameters that these have; None: every
               one that has parameters of it
    out        the output directory; files of the same name are replaced
    level      L0: a digest, max, min, norm and shape of each gradient. L1: signs instead of the
               digest. L2: also the share of elements in each interval, and of zeros
    bounds     numbers in ascending order that part the intervals of L2
    params     names of the parameters to look at, empty for all; of a tied one any of its names, it
               is written under its first
    steps      the steps to look at, empty for all. A step of a parameter is a call of step() of an
               optimizer that has it, counted from 0. A step() inside another counts once, for the
               outer one that has the parameter; steps that GradScaler skips do not count
    ranks      the ranks to look at, of several; empty for all. Where no launcher such as torchrun
               tells them, a process has its rank from init_process_group() on: before, it is rank 0
    signs      packed (a bit per element), npy (a byte, as NumPy reads it) or none
    ternary    signs of three values: zero is not negative
    digest     fast64 (of L0, if unset), md5, crc32 or none (if unset elsewhere); md5 and crc32 are
               those of the elements as float32
    threads    that measure one large tensor
    overflow   what happens when the disk is slower than the steps: drop_newest and drop_oldest leave
               out steps, and count them; block waits

    A gradient is main_grad where a parameter has that, else grad; as the optimizer sees it, so after
    clipping. It is looked at when step() begins. It is looked at when step() has ended where that is
    given a closure or any other callable. So it is under a fused optimizer that unscales for
    GradScaler. That is what the last run of the closure left, unscaled as torch's fused kernels leave
    it. What no known optimizer has counts with the first one that stepped, until its own one is seen
    to step. A gradient that both saw is written once. Parameters without a gradient have no line in
    that step. TypeError or ValueError names a bad argument, RuntimeError an output directory that
    cannot be made or that another live probe writes. After that nothing raises into training.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with trainmon.GradProbe(model, optimizer, out="probed") as probe:
    ...     model(torch.ones(8, 4)).sum().backward()
    ...     optimizer.step()
    >>> import pathlib
    >>> for file in sorted(pathlib.Path("probed/rank0").rglob("*.*")):
    ...     print(file.name)
    grad_summary_0.csv
    health.json
    run.json
    bias.sign
    weight.sign
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
        check_model(model)
        level = checks.choice("level", level, LEVELS)
        signs = checks.choice("signs", signs, SIGNS)
        if digest is None:
            digest = "fast64" if level == "L0" else "none"
        digest = checks.choice("digest", digest, _core.DIGESTS)
        overflow = checks.choice("overflow", overflow, OVERFLOWS)
        ternary, threads = checks.flag("ternary", ternary), checks.threads(threads)
        bounds = _bounds(bounds)
        out = checks.path("out", out, is_utf8=True)
        optimizers = None if optimizer is None else list(torch_optimizers(optimizer).values())
        if optimizers is not None:  # each once
            optimizers = list({id(one): one for one in optimizers}.values())
        self._params = checks.names("params", params, "names of parameters")
        self._steps = checks.counts("steps", steps)
        self.rank, self._world = output_directory.rank_and_world()
        self.directory = os.path.join(os.path.abspath(out), f"rank{self.rank}")
        self._process, self._ended = os.getpid(), None
        self._core = self._calls = None
        ranks = checks.counts("ranks", ranks)
        self._tell_ranks(ranks)
        if self._world > 1 and ranks and self.rank not in ranks:
            return
        self._model = weakref.ref(model)
        self._series: dict[str, int] = {}
        self._last: dict[str, int] = {}  # the last step of a parameter, by name
        self._seen: dict[str, tuple] = {}  # gradients of what no known optimizer has
        self._told: set[str] = set()
        self._reached = NO_STEP
        self._unseen = 0  # steps after an error switched the probe off
        self._lock = fork_safe_lock()  # optimizers may step in several threads
        named = dict(model.named_parameters())
        if older := _names_in(self.directory):
            steps_there = {name for name in older if name.startswith("grad_summary_")}
            self._say(
                f"{self.directory} exists: files of the same name are replaced in it; of the"
                f" {len(steps_there)} older steps, those that do not come again stay"
            )
        self._resolve_tied(model, named)
        self._tell_unknown(named)
        self._release = output_directory.claim(self, self.directory)
        try:
            self._core = core_of_probe(
                self.directory,
                self.rank,
                self._world,
                sum(p.numel() for p in named.values() if not _is_lazy(p)),
                level=level,
                bounds=bounds,
                signs=signs,
                ternary=ternary,
                digest=digest,
                digest_column=self._digest_column(digest),
                threads=threads,
                overflow=overflow,
            )
        except BaseException:
            self._release()
            raise
        self._part = Part(self._core, "grad probe")
        self._owners = Owners(optimizers)
        self._calls = StepCalls(optimizers, self._names_of, self._look, self._failed)
        at_work.add(self)

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

    def _names_of(self, optimizer) -> list[str]:
        model = self._model()
        if model is None:
            return []
        with self._lock:
            if not self._part.on:
                self._unseen += 1
                return []
            return self._owners.of(optimizer, model)

    def _look(self, names: list[str]) -> None:
        with self._lock:
            if self._part.on:
                self._look_at(names)

    def _look_at(self, names: list[str]) -> None:
        self._tell_late_rank()
        found = []
        for name in names:
            parameter = self._owners.parameter(name)
            gradient = None if parameter is None else gradient_of(parameter)
            # Whether an optimizer steps with what it has not is a guess: no gradient, no step.
            if gradient is None and name in self._owners.rest:
                continue
            if not self._was_seen(name, gradient):
                found.append((name, gradient))
        if not found:
            return self._reach(NO_GRADIENT)
        last = self._last
        step = 1 + max(last.get(name, -1) for name, _ in found)
        last.update((name, step) for name, _ in found)
        if self._steps and step not in self._steps:
            return self._reach(OTHER_STEPS)
        if self._params:
            found = [(name, gradient) for name, gradient in found if name in self._params]
        if not found:
            return self._reach(OTHER_PARAMS)
        found = [(name, gradient) for name, gradient in found if gradient is not None]
        self._reach(REFUSED if found else NO_GRADIENT)
        gradients = [on_cpu(gradient) for _, gradient in found]
        series = [self._series_of(n, g) for (n, _), g in zip(found, gradients, strict=True)]
        for index, reason in _core.probe_gradients(self._core, series, gradients, step):
            self._tell(reason, f"gradient of {found[index][0]} is not measured: {reason}")

    def _was_seen(self, name: str, gradient) -> bool:
        """Whether this very gradient was written with the step of another optimizer, before the one
        that has the parameter was known."""
        if name in self._owners.rest:
            if isinstance(gradient, torch.Tensor) and not gradient.is_inference():
                self._seen[name] = weakref.ref(gradient), gradient._version
            return False
        if name not in self._seen:
            return False
        before, version = self._seen.pop(name)
        self._tell(
            "adopted",
            f"no known optimizer had {name} until now: its gradients counted with the steps of the "
            "first one that stepped",
        )
        return gradient is not None and before() is gradient and gradient._version == version

    def _reach(self, how_far: int) -> None:
        self._reached = max(self._reached, how_far)

    def _series_of(self, name: str, gradient) -> int:
        series = self._series.get(name)
        if series is None:
            wanted = {"kind": "grad_reduced", "name": as_text(name)}
            try:
                series = self._core.add_series(dtype=dtype_name(gradient), **wanted)
            except (ValueError, AttributeError) as error:  # refused, by name, when it is looked at
                pass_on(error)
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

    def _tell_ranks(self, ranks) -> None:
        if ranks and all(rank >= self._world for rank in ranks):
            which = ", ".join(map(str, sorted(ranks)[:5])) + (", ..." if len(ranks) > 5 else "")
            if self._world == 1:
                self._say(
                    f"ranks {which}: there is one process, of rank 0, it is looked at (no launcher "
                    "and no init_process_group() before tell of others)"
                )
            else:
                self._say(f"ranks {which}: there are ranks 0 to {self._world - 1}, none is chosen")

    def _tell_late_rank(self) -> None:
        if "rank" not in self._told and (rank := output_directory.rank_and_world()[0]) != self.rank:
            self._told.add("rank")
            self._say(
                f"this process became rank {rank} after the probe was made: its files are in "
                f"{self.directory}; make the probe after init_process_group()"
            )

    def _resolve_tied(self, model, named: dict) -> None:
        """A parameter of several names is known by its first."""
        first = {id(parameter): name for name, parameter in named.items()}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name in self._params and name not in named:
                self._params = self._params - {name} | {first[id(parameter)]}
                self._say(f"{name} is {first[id(parameter)]}: it is written under that name")

    def _tell_unknown(self, named: dict) -> None:
        unknown = sorted(self._params - named.keys())
        if unknown:
            few = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            self._say(f"the model has no parameter {few}: nothing is written for it")

    # --- the end ---------------------------------------------------------------------------------

    def health(self) -> dict:
        """Rows (one per parameter and step) produced, written and dropped, and why.

        >>> probe.health()["rows_produced"]
        2
        """
        if self._core is None:
            return {}
        return self._ended or self._core.health()

    def flush(self, seconds: float = 30.0) -> bool:
        """Waits until the files of all steps so far are written; False if that took longer, or if one
        of them could not be written.

        >>> probe.flush(10)
        True
        """
        seconds = checks.seconds("seconds", seconds)
        return self._core is None or self._core.flush(seconds)

    def stop(self) -> dict:
        """Takes the hooks off, writes what is left and returns the health. Calling it again does
        nothing.

        >>> probe.stop()["rows_produced"]
        2
        """
        if self._core is None or self._ended is not None or os.getpid() != self._process:
            return self._ended or {}
        self._ended = {}
        at_work.discard(self)
        self._calls.remove()
        self._ended = self._core.stop()
        self._release()
        if not self._part.on:
            self._say(
                f"an error switched it off (health.json: parts_off); {self._unseen} steps of "
                "optimizers after that were not looked at"
            )
        elif self._ended["rows_produced"] == 0:
            if self._calls.skipped:
                self._reach(SKIPPED)
            self._say(f"nothing was written: {WHY_NOTHING[self._reached]}")
        (sink,) = self._ended["sinks"]
        if dropped := sum(sink["rows_dropped"].values()):
            self._say(
                f"{dropped} of {self._ended['rows_produced']} rows could not be written: "
                + ", ".join(f"{rows} {why}" for why, rows in sorted(sink["rows_dropped"].items()))
            )
        return self._ended


def check_model(model) -> None:
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


def _is_lazy(parameter) -> bool:
    return isinstance(parameter, nn.parameter.UninitializedParameter)
