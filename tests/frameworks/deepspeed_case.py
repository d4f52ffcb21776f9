# What the rows of the equality table under DeepSpeed have in common.
import functools
import json
import pathlib

import torch

import equality_compare
import equality_gpt as gpt
import equality_oracle
import launch

RUN = pathlib.Path(__file__).with_name("equality_deepspeed_run.py")
# Stages 2 and 3 reduce each micro step: nothing is added up before.
MICRO = {"each_micro": True, "reduce_each": True}
ZERO3 = {**MICRO, "split_linear": True}  # its linear layers add the bias apart


@functools.cache
def _oracle(options):
    return equality_oracle.train(**dict(options))


def train(rows, folder):
    """Trains `rows`, as ROWS of a test has them, one after the other in one start. ZeRO 3 comes last: it
    leaves its linear function, which rounds otherwise, in torch."""
    in_order = sorted(rows.items(), key=lambda row: row[1][1]["stage"] == 3)
    cases = json.dumps({row: case for row, (_, case, *_) in in_order})
    accelerator = {"DS_ACCELERATOR": "cpu"}
    launch.run(RUN, folder, cases, ranks=gpt.RANKS, timeout=900, environment=accelerator)


def check(row, title, case, precision, options, folder):
    """Rows equal those of the oracle, and training is that of a bare run."""
    for rank in range(gpt.RANKS):
        watched, bare = (torch.load(folder / f"{how}.{rank}.pt") for how in ("watched", "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
    expected = _oracle(tuple(options.items()))
    result = equality_compare.compare(folder / "run", expected, row, title, precision)
    cells = result["cells"].values()
    assert [c["compared"] for c in cells] == [29] * len(gpt.KINDS)
    steps = gpt.STEPS - ("scale_power" in case)  # the first is skipped
    assert sum(c["rows"] for c in cells) == 29 * steps * (5 + gpt.RANKS * gpt.MICRO_STEPS)
    if "scale_power" in case:
        equality_compare.first_step_is_skipped(folder / "run", 2.0 ** case["scale_power"])
