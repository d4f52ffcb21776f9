"""Pages of runs, and what every page must be."""

from __future__ import annotations

import os
import subprocess

import numpy as np

import launch
from written_run import WrittenRank

FAULT, SOUND, NOTHING_FINITE = "checked_weight_bit_30", "checked_clean", "nan"
MOMENTS, FIRST_MOMENT = "checked_second_moments_lost", "checked_first_moment"
NOTICED = "lr"


def trainmon(*arguments):
    return subprocess.run(
        [launch.command_line(), *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def page_of(run, *more):
    to = run.parent / f"{run.name}.html"
    done = trainmon("report", run, "-o", to, "--overwrite", *more)
    assert to.exists(), done.stderr
    return to


def written(out, name="w", steps=12, array=None, **config):
    rank = WrittenRank(out, **config)
    for step in range(steps):
        rank.observe(np.ones(3, np.float32) if array is None else array, "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    return rank


def silent(page):
    assert page.said() == []
    assert page.requested() == []
    assert page.evaluate("charts.length") <= 20
    assert page.count("canvas:not(.swatch)") == page.evaluate("charts.length")


def few_steps(out, values, name="w", **config):
    """One tensor, one rank; a value for each step."""
    rank = WrittenRank(out, **config)
    for step, value in enumerate(values):
        rank.observe(np.full(1, value, np.float32), "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    return page_of(out)
