# The gradient probe on MindSpore: per step what the gradients that reach an optimizer are like.
from __future__ import annotations

import os

from trainmon import _core
from trainmon.base.console import log
from trainmon.base.grad_probe import at_work, core_of_probe
from trainmon.base.names import as_text
from trainmon.base.parts import Part
from trainmon.base.signals import pass_on
from trainmon.mindspore import arguments, hooks
from trainmon.mindspore.parameters import dtype_name, rank_and_world


class GradProbe:
    """Looks at the gradients handed to an optimizer each time it is called, until stop() or the end of
    the process. Files and arguments are those of trainmon.GradProbe (docs/formats.md). Names are those
    of the optimizer's parameters. Gradients that a graph computed are looked at, too, as long as
    the optimizer itself is called in PyNative. Where it is called inside a graph, nothing is
    written."""

    def __init__(
        self, optimizer, *, out, level="L1", bounds=(-1, 0, 1), params=(), steps=(), ranks=(),
        signs="packed", digest="none", digest_column="",
    ):  # fmt: skip
        (self._optimizer,) = arguments.optimizers(optimizer).values()
        self.rank, world = rank_and_world()
        self.directory = os.path.join(os.path.abspath(out), f"rank{self.rank}")
        self._core = self._ended = None
        if world > 1 and ranks and self.rank not in ranks:
            return
        self._params, self._steps, self._step = set(params), set(steps), -1
        names = {parameter.name for parameter in self._optimizer.parameters}
        for name in sorted(self._params - names):
            log.warning("trainmon: grad probe: the optimizer has no parameter %r", name)
        self._core = core_of_probe(
            self.directory,
            self.rank,
            world,
            sum(parameter.size for parameter in self._optimizer.parameters),
            level=level,
            bounds=bounds,
            signs=signs,
            digest=digest,
            digest_column=digest_column,
        )
        self._part = Part(self._core, "grad probe")
        self._series: dict[str, int] = {}
        act = hooks.harmless(self._part, self._look)
        pre_hook = hooks.forward_pre(act)
        self._handle = self._optimizer.register_forward_pre_hook(pre_hook, with_kwargs=True)
        at_work.add(self)

    def _look(self, cell, args: tuple, kwargs: dict | None) -> None:
        gradients = [*args, *(kwargs or {}).values()][0]
        self._step += 1
        if self._steps and self._step not in self._steps:
            return
        found = [
            (parameter.name, gradient)
            for parameter, gradient in zip(self._optimizer.parameters, gradients)
            if not self._params or parameter.name in self._params
        ]
        series = [self._series_of(name, gradient) for name, gradient in found]
        tensors = [_on_cpu(gradient) for _, gradient in found]
        for index, reason in _core.probe_gradients(self._core, series, tensors, self._step):
            log.warning(
                "trainmon: grad probe: gradient of %s is not measured: %s", found[index][0], reason
            )

    def _series_of(self, name: str, gradient) -> int:
        if name not in self._series:
            wanted = {"kind": "grad_reduced", "name": as_text(name)}
            try:
                self._series[name] = self._core.add_series(dtype=dtype_name(gradient), **wanted)
            except ValueError as error:  # refused, by name, when it is looked at
                pass_on(error)
                self._series[name] = self._core.add_series(**wanted)
        return self._series[name]

    def health(self) -> dict:
        """Rows (one per parameter and step) produced, written and dropped, and why."""
        return {} if self._core is None else self._ended or self._core.health()

    def stop(self) -> dict:
        """Takes the hook off, writes what is left and returns the health."""
        if self._core is None or self._ended is not None:
            return self._ended or {}
        at_work.discard(self)
        self._handle.remove()
        self._ended = self._core.stop()
        if self._ended["rows_produced"] == 0:
            why = (
                "no call of the optimizer was seen (is it called in GRAPH_MODE or inside mindspore.jit?)"
                if self._step < 0
                else "no step or parameter was one of those asked for"
            )
            log.warning("trainmon: grad probe: nothing was written: %s", why)
        return self._ended


def _on_cpu(gradient):
    """Until there are kernels for other devices, elements are copied from there."""
    device = str(getattr(gradient, "device", "CPU"))
    return gradient if device.upper().startswith("CPU") else gradient.asnumpy()
