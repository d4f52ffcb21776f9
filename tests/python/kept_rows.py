"""Rows that any version of trainmon can be given again, to compare what it writes of them."""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "float64", "float16", "int64", "bool")


def write(rank) -> None:
    """`rank` is a WrittenRank. Eight steps, two of them skipped, of tensors of several types and shapes,
    some of them not finite, with scalars and what two groups declare."""
    rng = np.random.default_rng(4)
    for window in range(8):
        for i, dtype in enumerate(DTYPES):
            shape = [(), (7,), (3, 5), (2, 3, 4), (0,)][(window + i) % 5]
            array = np.asarray(rng.normal(size=shape) * 10.0 ** (3 * i - 6)).astype(dtype)
            if window == 6 and dtype.startswith("float") and array.size > 1:
                array.flat[0], array.flat[1] = np.nan, -np.inf
            rank.observe(array, "grad_reduced", f"layers.{i}.weight", window, accum=window % 2)
        rank.monitor.add_scalar("loss", 1.0 / (window + 3))
        rank.end_step("skipped" if window in (2, 6) else "taken", 1024.0 if window < 3 else 512.0)
    rank.stop()
