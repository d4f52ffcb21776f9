# One row of the equality table: rows of a run against the oracle, each kind a cell.
"""compare() reads the run merged over ranks, writes build/equality/NAME.json, which
scripts/equality_table.py makes a table of, and fails where anything is missing, too much or different.
"""

import json
import math
import os
import pathlib

import numpy as np

import equality_gpt as gpt
import equality_oracle
import trainmon

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "build" / "equality"
# Largest error by precision: of norm, min and max relative to norm and largest value, of the mean to
# the mean of absolute values; and the share of elements that rounding may carry over the limit of zeros.
# The oracle rounds where a wrapper does, so that low precision has no wider bounds.
ROUNDING = {"fp32": (5e-6, 0.001), "bf16": (5e-6, 0.001), "fp16": (5e-6, 0.001)}


def compare(
    run,
    expected: dict,
    name: str,
    title: str,
    precision: str = "fp32",
    blank: dict | None = None,  # kind -> why it is physically absent
    renamed=lambda name: name,
    tensor_ranks: int = 1,  # so many ranks in a row share one data rank's gradients before reduction
) -> dict:
    """What was written. `expected` is equality_oracle.train()'s; `renamed` makes its names of a run's."""
    blank = blank or {}
    got, unmerged = _recorded(run, renamed)
    if tensor_ranks > 1:
        counts = {key[1]: value["count"] for key, value in expected.items()}
        got = _joined(got, tensor_ranks, counts)
    limit, share = ROUNDING[precision]
    cells, problems = {}, list(unmerged)
    for kind in gpt.KINDS:
        wanted = {key: value for key, value in expected.items() if key[0] == kind}
        if kind in blank:
            cells[kind] = {"blank": blank[kind]}
            if any(key[0] == kind for key in got):
                problems.append(f"{kind} has rows, though it is said to have none")
            continue
        largest, right, wrong = 0.0, set(), set()
        for key, exact in wanted.items():
            row = got.pop(key, None)
            if row is None:
                wrong.add(key[1])
                problems.append(f"no row {key}")
                continue
            error, moved = _errors(exact, row)
            largest = max(largest, error)
            if row["count"] != exact["count"] or not error <= limit or not moved <= share:
                wrong.add(key[1])
                problems.append(f"{key}: error {error:.3g}, zeros {moved:.3g}: {row} not {exact}")
            right.add(key[1])
        names = {key[1] for key in wanted}
        good = right - wrong
        cells[kind] = {"compared": len(good), "expected": len(names), "error": largest,
                       "rows": len(wanted)}  # fmt: skip
    problems += [f"a row too many: {key}" for key in got if key[0] in gpt.KINDS]
    result = {"name": name, "title": title, "precision": precision, "cells": cells,
              "limits": {"error": limit, "zeros": share}}  # fmt: skip
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:12])
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def first_step_is_skipped(run, scale: float) -> None:
    """Gradients before reduction are recorded with the loss scale in them, which their rows say; all
    else without it. The first attempt has left no other rows."""
    columns = ("kind", "window", "step", "fate", "loss_scale", "flags", "nans", "infs")
    table = trainmon.read_table(os.fspath(run))
    rows = [dict(zip(columns, row)) for row in zip(*(list(table[c]) for c in columns))]
    unreduced = [r for r in rows if r["kind"] == "grad_unreduced"]
    steps = {(r["window"], r["step"], r["fate"], r["loss_scale"]) for r in unreduced}
    low = scale / 2
    assert steps == {(0, 0, "skipped", scale), (1, 0, "taken", low), (2, 1, "taken", low)}
    assert all(int(r["flags"]) & 1 for r in unreduced)  # kStillScaled
    assert any(r["nans"] or r["infs"] for r in unreduced if r["window"] == 0)
    others = [r for r in rows if r["kind"] != "grad_unreduced"]
    assert {r["window"] for r in others} == {1, 2}
    assert not any(int(r["flags"]) & 1 for r in others)


def _joined(got: dict, ranks: int, counts: dict) -> dict:
    """Rows before reduction are per rank. Ranks of one tensor parallel group have the parts of one
    gradient, or each all of it."""
    joined, groups = {}, {}
    for key, row in got.items():
        if key[0] == "grad_unreduced":
            groups.setdefault((*key[:-1], key[-1] // ranks), []).append(row)
        else:
            joined[key] = row
    for key, rows in groups.items():
        total = sum(row["count"] for row in rows)
        if total != counts.get(key[1]) and len(rows) == ranks:
            assert all(row == rows[0] for row in rows), f"copies that differ: {key}"
            rows, total = rows[:1], rows[0]["count"]
        joined[key] = {
            "count": total,
            "norm": math.sqrt(sum(row["norm"] ** 2 for row in rows)),
            "min": min(row["min"] for row in rows),
            "max": max(row["max"] for row in rows),
            **{s: sum(row[s] * row["count"] for row in rows) / total for s in ("mean", "zeros")},
        }
    return joined


def _errors(exact: dict, row: dict) -> tuple:
    """(largest relative error, share of elements that are zeros in one and not the other)"""
    scales = {"norm": "norm", "min": "absmax", "max": "absmax", "mean": "scale"}
    errors = [
        abs(row[s] - exact[s]) / (exact[of] or 1.0) if np.isfinite(row[s]) else np.inf
        for s, of in scales.items()
    ]
    one = 1.0 / exact["count"]  # one element may always be at the limit
    return max(errors), max(0.0, abs(row["zeros"] - exact["zeros"]) - one)


def _recorded(run, renamed) -> tuple:
    """((kind, name, step, micro, rank) -> statistics, problems)"""
    stats = list(equality_oracle.STATISTICS)
    table = trainmon.read_table(os.fspath(run), merged=True, stats=stats)
    found, problems = {}, []
    columns = [table[c].tolist() for c in ("kind", "name", "step", "micro_step", "rank", "fate")]
    for index, (kind, name, step, micro, rank, fate) in enumerate(zip(*columns)):
        if (
            kind not in gpt.KINDS or fate == "skipped"
        ):  # left out for its loss scale: no step of training
            continue
        micro = int(micro) if kind == "grad_unreduced" else -1
        key = kind, renamed(name), int(step), micro, int(rank)
        if key in found:
            problems.append(f"a row occurs twice: {key}")
        found[key] = {s: float(table[s][index]) for s in stats}
    return found, problems
