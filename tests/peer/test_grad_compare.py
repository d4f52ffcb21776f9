"""Our GradComparator beside the peer's (mindstudio-probe 8.3.3) on the same dumps: similarities.csv is
the same, byte by byte."""

import pathlib
import subprocess

import numpy as np
import pytest

import direction_dumps as dumps
from trainmon.compat.msprobe import GradComparator

HERE = pathlib.Path(__file__).resolve().parent


def peer(python, *arguments):
    command = [python, HERE / "peer_grad_compare.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def assert_same(python, a, b, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    done = peer(python, a, b, theirs)
    assert done.returncode == 0, done.stderr[-4000:]
    GradComparator.compare_distributed(a, b, ours)
    found = sorted(path.relative_to(theirs) for path in theirs.rglob("*.csv"))
    assert found == sorted(path.relative_to(ours) for path in ours.rglob("*.csv"))
    for path in found:
        assert (ours / path).read_bytes() == (theirs / path).read_bytes()
    pictures = {str(p.relative_to(theirs)) for p in theirs.rglob("*.png")}
    renamed = {p.replace("_similarities.png", ".png") for p in pictures}
    renamed = {p.replace("/summary.png", "/summary_similarities.png") for p in renamed}
    assert {str(p.relative_to(ours)) for p in ours.rglob("*.png")} == renamed and renamed
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_ranks(seed, tmp_path, peer833_python):
    shapes = {
        "z.weight": (64, 33),
        "a.weight": (5,),
        "empty": (0, 4),
        "m.bias": (),
        "3d": (3, 4, 5),
    }
    pair = [
        {rank: dumps.random_gradients(seed + rank, 12, shapes, drift) for rank in (0, 1)}
        for drift in (0.0, 0.1)
    ]
    a = dumps.write_dump(tmp_path / "a", pair[0])
    b = dumps.write_dump(tmp_path / "b", pair[1])
    assert len(assert_same(peer833_python, a, b, tmp_path)) == 2


def test_quotients_of_every_size(tmp_path, peer833_python):
    random = np.random.default_rng(4)
    names = [f"p{i}" for i in range(40)]
    sizes = {name: int(2 ** random.uniform(0, 18)) for name in names}
    first, second = {}, {}
    for step in range(3):
        first[step] = {n: random.standard_normal(sizes[n]) for n in names}
        second[step] = {n: np.ones(sizes[n]) for n in names}
        first[step]["p0"] = -np.ones(sizes["p0"])
    a = dumps.write_dump(tmp_path / "a", {0: first})
    b = dumps.write_dump(tmp_path / "b", {0: second})
    assert_same(peer833_python, a, b, tmp_path)


def test_a_missing_gradient_ends_the_peer_and_not_us(tmp_path, peer833_python):
    """And only that row has a hole."""
    first, second = dumps.random_gradients(5), dumps.random_gradients(5, drift=0.3)
    del second[1]["fc1.bias"]
    a = dumps.write_dump(tmp_path / "a", {0: first})
    b = dumps.write_dump(tmp_path / "b", {0: second}, names=list(first[0]))
    done = peer(peer833_python, a, b, tmp_path / "theirs")
    assert done.returncode != 0 and "no matched grad_file" in done.stderr
    GradComparator.compare_distributed(a, b, tmp_path / "ours")
    rows = dumps.oracle_rows(first, second, range(3), list(first[0]))
    text = (tmp_path / "ours" / "rank0" / "similarities.csv").read_bytes()
    assert text == dumps.csv_bytes(rows)
