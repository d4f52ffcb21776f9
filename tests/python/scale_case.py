"""The queries of docs/scale.md, a run to ask them about, and what the answers must be."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

import trainmon
from written_run import WrittenRank

DOCUMENT = Path(__file__).parents[2] / "docs" / "scale.md"
RANKS, STEPS = 4, 12
TENSORS = [f"layers.{i}.{part}" for i in range(3) for part in ("weight", "bias")]
NAMES = ("first_bad", "worst_norm", "one_tensor", "outliers", "drift")


def setup(engine: str) -> str:
    return re.search(rf"^```python {engine}\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)[1]


def blocks(query: str) -> tuple[str, str]:
    """The SQL and the Python under a heading."""
    section = re.search(rf"^## {query}:.*?(?=^## |\Z)", DOCUMENT.read_text(), re.M | re.S)[0]
    (sql,) = re.findall(r"^```sql\n(.*?)^```$", section, re.M | re.S)
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    return sql, code


def write_run(out: Path) -> None:
    """Rank 2 has a NaN at step 5 in layers.1.weight, rank 3 an Inf at step 9 in layers.0.bias and
    then a NaN in layers.2.bias; rank 1 is large at step 7; rank 0's layers.2.weight drifts from
    step 4 on."""
    for rank in range(RANKS):
        writer = WrittenRank(out, rank, RANKS)
        for step in range(STEPS):
            for number, name in enumerate(TENSORS):
                rng = np.random.default_rng([rank, step, number])
                grad = rng.normal(size=20).astype(np.float32)
                if (rank, step) == (1, 7):
                    grad *= 50
                if (rank, step, name) in [(2, 5, "layers.1.weight"), (3, 9, "layers.2.bias")]:
                    grad[3] = np.nan
                if (rank, step, name) == (3, 9, "layers.0.bias"):
                    grad[3] = np.inf
                weight = np.random.default_rng([step, number]).normal(size=20)
                weight = weight.astype(np.float32)
                if rank == 0 and step >= 4 and name == "layers.2.weight":
                    weight[0] += 1e-3
                writer.observe(grad, "grad_reduced", name, step)
                writer.observe(weight, "param_updated", name, step, replication="identical")
            writer.end_step()
        writer.stop()


def expected(run: Path) -> dict[str, pd.DataFrame]:
    """Planted, or found in what trainmon.read gives."""
    grads = trainmon.read(run, kinds="grad_reduced")
    sound = grads[(grads["nans"] == 0) & (grads["infs"] == 0)]
    worst = sound.loc[sound.groupby("name", observed=True)["norm"].idxmax()]
    worst = worst.sort_values("norm", ascending=False)[["name", "norm", "step", "rank"]]
    one = sound[sound["name"] == "layers.1.weight"].groupby("step")["norm"]
    at = (
        grads[grads["step"] == 7]
        .groupby("rank")["norm"]
        .apply(lambda n: float(np.sqrt((n**2).sum())))
    )
    return {
        "first_bad": pd.DataFrame(
            {"rank": [2, 3], "step": [5, 9], "name": ["layers.1.weight", "layers.0.bias"]}
        ),
        "worst_norm": worst.head(10),
        "one_tensor": one.agg(ranks="count", low="min", high="max").reset_index(),
        "outliers": pd.DataFrame({"rank": [1], "norm": [at[1]], "ratio": [at[1] / at.median()]}),
        "drift": pd.DataFrame({"name": ["layers.2.weight"], "step": [4]}),
    }


def assert_same(got: pd.DataFrame, wanted: pd.DataFrame) -> None:
    assert len(wanted) > 0
    assert list(got.columns) == list(wanted.columns) and len(got) == len(wanted)
    for column in wanted:
        values = wanted[column].to_numpy()
        if values.dtype.kind == "f":
            np.testing.assert_allclose(got[column].to_numpy(), values, rtol=1e-12, err_msg=column)
        else:
            assert list(got[column]) == list(values), column
