# Writes docs/statistics.md from the table in the core: python scripts/statistics_doc.py
from __future__ import annotations

import pathlib

from trainmon import _core

PATH = pathlib.Path(__file__).resolve().parent.parent / "docs" / "statistics.md"

HEAD = """\
# Statistics

Generated from the table in `src/model/stat.cpp` by `python scripts/statistics_doc.py`; a test
compares the two. `x` runs over all elements of a tensor, expanded ones as often as they occur.

| name | formula | type | with a NaN | with an infinity, no NaN | no element |
| --- | --- | --- | --- | --- | --- |
"""

TAIL = """
## How they are measured

- Every element is read once, whatever the number of statistics, and no copy of the tensor is made.
- Sums are taken in float64 over blocks of 4096 elements, sixteen interleaved lanes each, and joined
  in a fixed tree. Squares of floating-point types of 16 and 8 bits are exact in float32: they are
  summed in thirty-two lanes of float32 first. These go into the float64 lanes every 1024 (float16
  and 8 bits: 256) elements. So the norm is off by about 1e-8 instead of 1e-15. The mean is off by at
  most a few 1e-8 of the mean of |x|. The result has the same bits for any number of threads and any
  instruction set (`TRAINMON_CPU_LEVEL` = `baseline`, `avx2`, `avx512` lowers the one in use).
- What is kept of a tensor can be merged: counts, `min`, `max` and `absmax` exactly, sums within
  rounding. A statistic is derived only when it is read.
- `norm` is correct for any scale of any type: squares of float64 are scaled where they would leave
  the range of float64.
- `std` is that of the population: the sum is divided by `count`, not by `count - 1`. It does not
  lose its digits where the mean is large beside it.
- `zeros` compares with `eps` (default 1e-8) exactly, in every type: float16 elements are not
  compared with an eps rounded to 0.
- `subnormals` refers to the tensor's own type and is 0 for integers. The processor's mode that
  flushes them to zero has no influence.
- 64-bit integers beyond 2^53 are rounded to float64, except in `zeros`. A bool counts as 0 or 1.

Element types: float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, the signed and
unsigned integers of 8 to 64 bits, and bool. Any layout of a dense tensor: strided, permuted,
expanded, overlapping, of no dimension, empty. Complex, sparse, quantised, nested and meta tensors
and negative views are refused by name. So are tensor subclasses with operations of their own (DTensor) and tensors whose
storage is smaller than their sizes say. `resolve_neg()` and `torch.view_as_real()` give what can be measured.
"""


def text() -> str:
    """The whole page."""
    columns = ("formula", "type", "with_nan", "with_inf", "empty")
    lines = []
    for entry in _core.stat_table():
        cells = [f"`{entry['name']}`", *(entry[column].replace("|", "\\|") for column in columns)]
        lines.append("| " + " | ".join(cells) + " |\n")
    return HEAD + "".join(lines) + TAIL


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
