"""What `trainmon compare` says of runs whose gradients are rounding alone, that were cut or lack rows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import launch
import trainmon
from test_compare import command, scaled, write
from written_run import WrittenRank


class Attention(nn.Module):
    """Queries and keys of their own: softmax is blind to the bias of keys."""

    def __init__(self, width=32):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k, v = (p(x).unsqueeze(1) for p in (self.q_proj, self.k_proj, self.v_proj))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)


def convolutions():
    """Every bias before a normalisation has a gradient of zero, but for rounding."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10),
    )  # fmt: skip


def train(out, build, shape, *, reverse, rate=1e-3, steps=6):
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)
    kinds = ["activations", "grads", "param_updated"]
    with trainmon.watch(model, optimizer, out=str(out), kinds=kinds, every=1):
        for _ in range(steps):
            x = torch.randn(16, *shape, generator=generator)
            y = torch.randint(0, 10, (16,), generator=generator)
            if reverse:
                x, y = x.flip(0), y.flip(0)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return out


@pytest.mark.parametrize(
    ("build", "shape", "blind"),
    [
        (convolutions, (3, 12, 12), "0.bias"),
        (lambda: nn.Sequential(Attention(), nn.Flatten(), nn.Linear(8 * 32, 10)), (8, 32), "0.k_proj.bias"),
    ],
)  # fmt: skip
def test_gradients_that_are_rounding_alone(tmp_path, build, shape, blind):
    a = train(tmp_path / "a", build, shape, reverse=False)
    b = train(tmp_path / "b", build, shape, reverse=True)
    both = [trainmon.read_table(run, kinds=["grad_reduced"], include=[blind]) for run in (a, b)]
    assert np.any(both[0]["norm"] != both[1]["norm"]) and max(both[0]["norm"]) < 1e-5
    report = trainmon.compare(a, b)
    assert report["first"] is None, report["first"]
    wrong = train(tmp_path / "wrong", build, shape, reverse=True, rate=3e-3)
    first = trainmon.compare(a, wrong)["first"]
    assert (first["step"], first["kind"]) == (0, "param_updated")


def test_reduced_gradients_come_backward(tmp_path):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", lambda x, r, s, n: x * np.float32(2 if s == 2 else 1))
    assert trainmon.compare(a, b)["first"]["name"] == "out.weight"  # the last of the model


def test_a_row_that_one_run_lacks_is_named(tmp_path):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", lambda x, r, s, n: None if (s, n) == (2, 1) else x)
    _, _, err = command(a, b, code=0)
    assert "rows of A that B lacks" in err and "grad_reduced out.weight: step 2" in err
    report = trainmon.compare(a, b)
    assert report["a"]["rows_only_here"] == ["grad_reduced out.weight: step 2"]
    assert report["b"]["rows_only_here"] == []


@pytest.mark.parametrize("lost", [False, True])
def test_activations_of_two_ranks_are_compared_rank_by_rank(tmp_path, lost):
    def written(out, change=None):
        return write(out, change, names=("fc",), kind="actv", ranks=2, replication="union")

    a = written(tmp_path / "a")
    b = written(tmp_path / "b", scaled(3, 1, 0, rank=1))
    if lost:
        for run in (a, b):
            shutil.rmtree(run / "rank_00000")
    first = trainmon.compare(a, b)["first"]
    assert (first["step"], first["rank"], first["name"]) == (1, 1, "fc")


def test_a_repeat_whose_activations_are_taken_otherwise(tmp_path):
    """A and its repeat have two ranks, B has one: activations are merged for B alone."""
    shape = {"names": ("fc",), "kind": "actv", "replication": "identical"}
    a, null = (write(tmp_path / name, lambda x, r, s, n: x if r == 0 else x + 1, ranks=2, **shape) for name in ("a", "null"))  # fmt: skip
    b = write(tmp_path / "b", scaled(3, 1, 0), **shape)
    plain, report = trainmon.compare(a, b), trainmon.compare(a, b, null=null)
    assert report["null"]["ranks"] == [0, 1] and report["null"]["unmatched"] == 0
    for key in ("first", "worst", "levels", "rows", "a", "b"):
        assert report[key] == plain[key], key
    assert "equal to A to the bit" in report["remarks"][0]


def test_what_the_last_step_says_of_the_first(tmp_path):
    """Sizes of the last step prove that the batch is split otherwise: activations of no step are
    compared."""
    for name, world in (("a", 1), ("b", 2)):
        one = WrittenRank(tmp_path / name, 0, world)
        for step in range(9):
            for kind in ("actv", "grad_reduced"):
                size = 25 if (kind, name, step) == ("actv", "b", 8) else 50
                array = np.random.default_rng([step, size]).normal(size=size).astype(np.float32)
                one.observe(array, kind, "fc", step, replication="independent")
            one.end_step()
        one.stop()
    report = trainmon.compare(tmp_path / "a", tmp_path / "b")
    assert {level["kind"] for level in report["levels"]} == {"grad_reduced"}
    assert "the batch is split otherwise" in report["remarks"][0]


def test_a_weight_that_begins_late(tmp_path):
    """How far its first step moved it is told by the next two, and that it is a bias by the weight
    beside it, wherever they begin: here as in a comparison that begins with them."""
    for name in "ab":
        one = WrittenRank(tmp_path / name)
        for step in range(9):
            for kind in ("grad_reduced", "param_updated") if step > 5 else ("grad_reduced",):
                for tensor, size in (("fc.weight", 50), ("fc.bias", 10)):
                    rng = np.random.default_rng([step, size])
                    factor = 1.3 if (name, kind, step) == ("b", "param_updated", 6) else 1
                    one.observe(np.float32(factor * rng.normal(size=size)), kind, tensor, step)
            one.end_step()
        one.stop()
    ratios = []
    for kinds in (None, "param_updated"):
        report = trainmon.compare(tmp_path / "a", tmp_path / "b", kinds=kinds)
        levels = {(level["kind"], level["step"]): level["ratio"] for level in report["levels"]}
        ratios.append(levels["param_updated", 6])
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3) and 0 < ratios[0] < 10


CUT = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
import numpy as np
from written_run import WrittenRank
one = WrittenRank(pathlib.Path(sys.argv[1]))
for step in range(5000):
    for number, name in enumerate(("fc.weight", "out.weight")):
        array = np.random.default_rng([0, step, number]).normal(size=50).astype(np.float32)
        one.observe(array, "grad_reduced", name, step)
    one.end_step()
print("written", flush=True)
sys.stdin.read()
"""


def test_a_run_that_was_cut(tmp_path):
    a, b = write(tmp_path / "a"), tmp_path / "b"
    here = os.fspath(launch.SHARED)
    child = subprocess.Popen([sys.executable, "-c", CUT, b, here], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout.readline() == b"written\n"
    while not (list(b.glob("rank_00000/restart_0000/health.json")) and command(a, b)[0] != 2):
        assert child.poll() is None
        time.sleep(0.2)
    child.kill()
    child.communicate()
    _, out, err = command(a, b, code=3)
    assert (
        out.startswith("no difference")
        and "rank 0: its process is gone and did not stop in order" in err
    )


def test_a_damaged_repeat(tmp_path):
    a, b = write(tmp_path / "a", steps=40), write(tmp_path / "b", steps=40)
    null = shutil.copytree(a, tmp_path / "null")
    log = sorted(null.glob("rank_00000/restart_0000/*.tmlog"))[0]
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    _, _, err = command(a, b, "--null", null, code=3)
    assert "not used of the repeated run" in err and "to the bit" not in err


def test_a_log_without_content_says_why(tmp_path):
    a = write(tmp_path / "a")
    b = shutil.copytree(a, tmp_path / "b")
    log = sorted(b.glob("rank_00000/restart_0000/*.tmlog"))[0]
    log.write_bytes(os.urandom(300))
    _, _, err = command(a, b, code=2)
    assert log.name in err or str(b) in err
    assert "(" in err.split("no row that was selected")[1]
    _, _, err = command(a, a, "--name", "nosuch", code=2)
    assert "it has ranks 0 and kinds grad_reduced" in err


def test_pictures_that_cannot_be(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", scaled(2, 3, 1))
    for bad in ("", tmp_path / "p.txt", tmp_path / "no" / "p.png", tmp_path / "p.png"):
        if bad == tmp_path / "p.png":
            bad.mkdir()
        code, out, err = command(a, b, "--plot", bad, code=2)
        assert "--plot" in err and out == ""
    # A name too long for a file: known only when it is written.
    _, out, _ = command(a, b, "--plot", tmp_path / ("x" * 300 + ".png"), code=1)
    assert out.startswith("first difference")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"worst": -1}, ValueError), ({"worst": 2**70}, ValueError), ({"worst": "x"}, TypeError),
        ({"worst": 2.5}, TypeError), ({"tolerance": "x"}, TypeError), ({"tolerance": None}, TypeError),
        ({"tolerance": True}, TypeError), ({"a": None}, TypeError), ({"null": 5}, TypeError),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(tmp_path, arguments, error):
    with pytest.raises(error, match=f"^{next(iter(arguments))} must be"):
        trainmon.compare(**{"a": tmp_path, "b": tmp_path, **arguments})


def test_a_rank_that_is_none(tmp_path):
    a = write(tmp_path / "a", steps=1)
    assert "ranks count from 0" in command(a, a, "--rank=-1", code=2)[2]


def test_a_table_without_differences_is_not_printed(tmp_path):
    a = write(tmp_path / "a")
    assert len(command(a, a, code=0)[1].splitlines()) == 1
