"""GradComparator as msprobe's manual has it: imports, arguments, layout and names of the output, the
verdict that is printed, what is logged."""

import logging
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import direction_dumps as dumps
from trainmon.compat.msprobe import GradComparator

MANUAL = """
from trainmon.compat.msprobe import *
GradComparator.compare_distributed({a!r},
                                    {b!r},
                                    {out!r})
"""


@pytest.fixture
def pair(tmp_path):
    return dumps.write_pair(tmp_path)


def files(out):
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def run_manual(a, b, out):
    script = MANUAL.format(a=str(a), b=str(b), out=str(out))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def pictures_of(names):
    return [f"similarities_picture/{name}.png" for name in (*names, "summary_similarities")]


def test_the_manuals_script(pair):
    """Several cards: rank{r}/similarities.csv and similarities_picture/{parameter}.png."""
    done = run_manual(pair.a, pair.b, pair.out)
    assert done.returncode == 0, done.stderr
    names = list(pair.first[0][0])
    each = ["similarities.csv", "verdict.json", *pictures_of(names)]
    assert files(pair.out) == sorted(f"rank{r}/{name}" for r in (0, 1) for name in each)
    for rank in (0, 1):
        rows = dumps.oracle_rows(pair.first[rank], pair.second[rank], range(3), names)
        text = (pair.out / f"rank{rank}" / "similarities.csv").read_bytes()
        assert text == dumps.csv_bytes(rows)
    assert done.stdout.startswith("rank 0: nothing suspicious in 4 parameters and 3 steps\n")
    assert "\nrank 1: suspicious at step 0, in backward order: " in done.stdout
    # No bar where there is no terminal: a line now and then, if the machine is slow.
    assert re.fullmatch(r"(drawing: \d+%\n)*", done.stderr)


def test_one_card_has_no_level_of_ranks(pair, tmp_path):
    one = dumps.write_dump(tmp_path / "one", {None: pair.first[0]})
    done = run_manual(one, one, pair.out)
    assert done.returncode == 0, done.stderr
    assert files(pair.out) == sorted(
        ["similarities.csv", "verdict.json", *pictures_of(pair.first[0][0])]
    )
    assert done.stdout == "nothing suspicious in 4 parameters and 3 steps\n"


def test_a_dump_compared_with_itself(tmp_path):
    """Linear(10, 5) and ReLU, ten steps: one folder of a rank, all 1.0."""
    shapes = {"linear.weight": (5, 10), "linear.bias": (5,)}
    dump = dumps.write_dump(tmp_path / "a", {0: dumps.random_gradients(3, 10, shapes)})
    GradComparator.compare_distributed(dump, dump, str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == ["rank0"]
    rows = [["step", *map(str, range(10))]]
    rows += [[name, *["1.0"] * 10] for name in (*shapes, "summary")]
    text = (tmp_path / "out" / "rank0" / "similarities.csv").read_bytes()
    assert text == dumps.csv_bytes(rows)


def test_dumps_may_be_exchanged(pair, tmp_path):
    GradComparator.compare_distributed(pair.a, pair.b, tmp_path / "ab")
    GradComparator.compare_distributed(pair.b, pair.a, tmp_path / "ba")
    for rank in ("rank0", "rank1"):
        one, other = (tmp_path / out / rank / "similarities.csv" for out in ("ab", "ba"))
        assert one.read_bytes() == other.read_bytes()


def test_the_peers_module_and_names_of_arguments(pair, tmp_path):
    from trainmon.compat.msprobe.core.grad_probe.grad_compare import GradComparator as same

    assert same is GradComparator
    same.compare_distributed(path1=str(pair.a), path2=str(pair.b), output_dir=str(pair.out))
    same.compare_distributed(
        dump_path1=str(pair.a), dump_path2=str(pair.b), output_path=str(tmp_path / "again")
    )
    same.compare(str(pair.a / "rank1"), str(pair.b / "rank1"), str(tmp_path / "one"))
    expected = (pair.out / "rank1" / "similarities.csv").read_bytes()
    assert (tmp_path / "again" / "rank1" / "similarities.csv").read_bytes() == expected
    assert (tmp_path / "one" / "similarities.csv").read_bytes() == expected


def test_a_missing_gradient_is_logged_and_the_rest_compared(pair, caplog):
    (pair.b / "rank1" / "step1" / "scale.npy").unlink()
    np.save(pair.b / "rank1" / "step2" / "scale.npy", np.ones(2))
    del pair.second[1][1]["scale"], pair.second[1][2]["scale"]
    GradComparator.compare_distributed(str(pair.a), str(pair.b), str(pair.out))
    assert [record.getMessage() for record in caplog.records] == [
        "not compared: rank 1: scale at step 1: only in the first",
        "not compared: rank 1: scale at step 2: the second: its elements are <f8, not bool",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    rows = dumps.oracle_rows(pair.first[1], pair.second[1], range(3), list(pair.first[1][0]))
    assert (pair.out / "rank1" / "similarities.csv").read_bytes() == dumps.csv_bytes(rows)


def test_errors(pair, tmp_path):
    compare = GradComparator.compare_distributed
    with pytest.raises(FileNotFoundError, match="^dump_path1: there is no directory .*missing"):
        compare(str(tmp_path / "missing"), str(pair.b), str(pair.out))
    with pytest.raises(FileNotFoundError, match="^path2: there is no directory .*missing"):
        compare(str(pair.a), path2=str(tmp_path / "missing"), output_path=str(pair.out))
    for given in (("", pair.b, pair.out), (pair.a, "", pair.out), (pair.a, pair.b, "")):
        name = ("dump_path1", "dump_path2", "output_path")[given.index("")]
        with pytest.raises(ValueError, match=f"^{name} must be a path, not empty"):
            compare(*given)
    with pytest.raises(TypeError, match="dump_path2 must be a path, not int"):
        compare(str(pair.a), 3, str(pair.out))
    with pytest.raises(TypeError, match="output_path must be a path, not NoneType"):
        compare(str(pair.a), str(pair.b))
    other = dumps.write_dump(tmp_path / "other", {5: pair.first[0]})
    with pytest.raises(RuntimeError, match="nothing to compare: .*rank 0, 1.*rank 5"):
        compare(str(pair.a), other, str(pair.out))
    assert not pair.out.exists()


def test_a_bar_on_a_terminal(pair):
    import pty

    script = MANUAL.format(a=str(pair.a), b=str(pair.b), out=str(pair.out))
    script = script.replace(
        "GradComparator.", "import time; clock = time.monotonic\n"
        "time.monotonic = lambda turn=iter(range(10**9)): clock() + next(turn)\nGradComparator.", 1
    )  # fmt: skip
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=slave, stdout=subprocess.PIPE, text=True
    )
    os.close(slave)
    said = b""
    try:
        while chunk := os.read(master, 65536):
            said += chunk
    except OSError:  # a closed terminal, on Linux
        pass
    os.close(master)
    stdout, _ = process.communicate()
    assert process.returncode == 0 and "nothing suspicious" in stdout
    assert b"\rcomparing [" in said and b"\rdrawing [" in said
    assert said.endswith(b"\r\x1b[K")
