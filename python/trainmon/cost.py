# What watching a run would cost, said before it begins: time of a step, rows and bytes on disk.
from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from trainmon.checks import arguments as checks
from trainmon.config import config_json
from trainmon.volume import DAY, Volume, in_bytes

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on

    from trainmon.config_types import ConfigKeys, OtherKeys


@dataclass(frozen=True)
class KindCost:
    """Of one kind, on one rank, in a step that is recorded. Per day: on all ranks, with `every`."""

    kind: str
    tensors: int  # of which there are rows
    rows: int
    elements: int
    bytes_read: int
    milliseconds: float | None  # None: not estimated
    disk_bytes_per_step: float
    disk_bytes_per_day: float


@dataclass(frozen=True)
class Estimate:
    """What a configuration would cost. As text: a table."""

    kinds: tuple[KindCost, ...]
    together: KindCost  # their sum, of what is estimated
    hooks_milliseconds: float  # of hooks on parameters, in each step, recorded or not
    share: float  # of a step's time, the average of recorded steps and others: 0.01 is 1 %
    every: int
    ranks: int
    step_seconds: float  # of a step that is not watched
    device: str
    not_estimated: tuple[str, ...]  # what, and why

    def __str__(self) -> str:
        table = [("kind", "tensors", "rows", "elements", "read", "time", "disk a day")]
        table += [_cells(kind) for kind in self.kinds]
        if len(self.kinds) > 1:
            table.append(_cells(self.together))
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in table
        ]
        lines.append(self._what_a_step_costs())
        lines += [f"Not estimated: {text}." for text in self.not_estimated]
        return "\n".join(lines)

    def _what_a_step_costs(self) -> str:
        which = "Every step" if self.every == 1 else f"One step in {self.every}"
        where = f"on {self.ranks} rank{'s' * (self.ranks != 1)}"
        text = f"{which} is recorded {where}."
        if self.device == "meta":
            return text
        return (
            f"{text} On {self.device}, the rows of such a step take {self.together.milliseconds:.3g} ms. "
            f"Hooks on parameters take {self.hooks_milliseconds:.2g} ms of each step, recorded or not. The "
            f"average is {1000 * self.step_seconds * self.share:.3g} ms a step, which is "
            f"{100 * self.share:.2g} % of {self.step_seconds:g} s (step_seconds)."
        )


def _cells(cost: KindCost) -> tuple[str, ...]:
    took = "?" if cost.milliseconds is None else f"{cost.milliseconds:.3g} ms"
    counts = f"{cost.tensors:,}", f"{cost.rows:,}", f"{cost.elements:,}"
    return cost.kind, *counts, in_bytes(cost.bytes_read), took, in_bytes(cost.disk_bytes_per_day)


def _together(costs: list[KindCost]) -> KindCost:
    sums = {
        field.name: sum(getattr(cost, field.name) or 0 for cost in costs)
        for field in fields(KindCost)
        if field.name != "kind"
    }
    return KindCost("together", **sums)


def estimate(
    model,
    optimizer=None,
    inputs=None,
    *,
    step_seconds: float = 1.0,
    kinds: str | Collection[str] | None = None,
    every: int | None = None,
    config: ConfigKeys | Mapping[str, Any] | str | os.PathLike | None = None,
    **keys: Unpack[OtherKeys],
) -> Estimate:
    """What trainmon.watch() with the same arguments would cost, before any training. Nothing of the
    model, its optimizer or the random states changes, and nothing is kept on disk.

    model         as of watch(); of PyTorch
    optimizer     as of watch(). Without one there are no rows of optimizers
    inputs        one batch for the model: a tensor, a tuple of arguments, or a dict of keyword
                  arguments. Only shapes, dtypes and devices of its tensors matter. Without it activations are not
                  estimated
    step_seconds  how long a step takes that is not watched

    Rows and elements follow from shapes. Activations are counted in a forward and backward of a copy
    whose tensors have no values. Times follow from speeds that are measured on the device of the
    parameters, in about a second. Bytes on disk are more than those of a long run, up to twice.

    Raises what watch() raises for the same arguments, TypeError for a model that is none of PyTorch.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> found = trainmon.estimate(model, inputs=torch.ones(8, 4), kinds=["grads", "actv"])
    >>> [(kind.kind, kind.tensors, kind.elements) for kind in found.kinds]
    [('grad_reduced', 2, 10), ('actv', 6, 128)]
    """
    from trainmon.torch.expected import Expectation  # loads torch

    step_seconds = checks.seconds("step_seconds", step_seconds)
    if step_seconds == 0:
        raise ValueError("step_seconds must be more than 0")
    asked = {"kinds": kinds, "every": every}
    given = {key: value for key, value in asked.items() if value is not None}
    settings = json.loads(config_json(config, **keys, **given))
    found = Expectation(model, optimizer, inputs, settings)
    expected = found.kinds.values()
    rows = sum(kind.rows for kind in expected)
    volume = Volume({**settings, "allow_volume": True}, rows, found.identity)
    per_day = volume.per_row * volume.ranks / volume.every * DAY / step_seconds
    costs = [
        KindCost(
            kind=one.kind,
            tensors=len(one.tensors),
            rows=one.rows,
            elements=one.elements,
            bytes_read=one.bytes,
            milliseconds=None if one.seconds is None else 1000 * one.seconds,
            disk_bytes_per_step=one.rows * volume.per_row,
            disk_bytes_per_day=one.rows * per_day,
        )
        for one in expected
    ]
    together = _together(costs)
    return Estimate(
        kinds=tuple(costs),
        together=together,
        hooks_milliseconds=1000 * found.hook_seconds,
        share=(together.milliseconds / 1000 / volume.every + found.hook_seconds) / step_seconds,
        every=volume.every,
        ranks=volume.ranks,
        step_seconds=step_seconds,
        device=str(found.device),
        not_estimated=tuple(found.not_estimated),
    )
