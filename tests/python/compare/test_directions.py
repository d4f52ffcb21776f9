"""trainmon.compare_directions against NumPy: every form of file, whatever is missing or damaged."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import direction_dumps as dumps
import trainmon
from direction_dumps import compared

FORMS = ("npy", "columns", "odd bytes", "sign", "ternary", "int8", "int8 in columns")
TERNARY = {"ternary", "int8", "int8 in columns"}


def put(folder, gradient, form):
    """The directions of one parameter, "w", at step 0 of a dump of one card."""
    path = pathlib.Path(folder) / "step0"
    path.mkdir(parents=True)
    if form == "npy":
        np.save(path / "w.npy", gradient > 0)
    elif form == "columns":
        np.save(path / "w.npy", np.array(gradient > 0, order="F"))
    elif form.startswith("int8"):
        signs = np.nan_to_num(np.sign(gradient)).astype(np.int8)
        np.save(path / "w.npy", np.array(signs, order="F" if "columns" in form else "C"))
    elif form == "odd bytes":  # what NumPy takes for true, too
        odd = np.where(gradient > 0, np.arange(gradient.size).reshape(gradient.shape) % 255 + 1, 0)
        np.save(path / "w.npy", odd.astype(np.uint8).view(bool))
    else:
        planes = [gradient > 0] if form == "sign" else [gradient > 0, gradient < 0]
        (path / "w.sign").write_bytes(dumps.sign_bytes(planes))


def gradient_pair(shape, seed):
    random = np.random.default_rng(seed)
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45], dtype=np.float32)

    def one():
        values = random.standard_normal(shape).astype(np.float32)
        odd = special[random.integers(0, len(special), shape)]
        return np.where(random.random(shape) < 0.3, odd, values)

    return one(), one()


def same_sign(a, b, ternary):
    same = (a > 0) == (b > 0)
    return same & ((a < 0) == (b < 0)) if ternary else same


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    seed=st.integers(0, 2**32),
    forms=st.tuples(st.sampled_from(FORMS), st.sampled_from(FORMS)),
)
def test_every_form_against_every_form(shape, seed, forms):
    a, b = gradient_pair(tuple(shape), seed)
    with tempfile.TemporaryDirectory() as folder:
        put(f"{folder}/a", a, forms[0])
        put(f"{folder}/b", b, forms[1])
        (rank,) = compared(f"{folder}/a", f"{folder}/b", f"{folder}/out").ranks
    equal = same_sign(a, b, TERNARY.issuperset(forms)).sum()
    assert rank.rank is None and rank.parameters == ["w"] and rank.steps == [0]
    assert rank.elements.tolist() == [[a.size]] and rank.equal.tolist() == [[equal]]
    assert rank.similarity.tolist() == [[equal / a.size if a.size else 0.0]]


@pytest.mark.parametrize("forms", [(a, b) for a in FORMS for b in FORMS])
def test_tensors_of_many_blocks(tmp_path, forms):
    a, b = gradient_pair((257, 771), 5)
    put(tmp_path / "a", a, forms[0])
    put(tmp_path / "b", b, forms[1])
    (rank,) = compared(tmp_path / "a", tmp_path / "b", tmp_path / "out").ranks
    equal = same_sign(a, b, TERNARY.issuperset(forms)).sum()
    assert (rank.equal[0, 0], rank.elements[0, 0]) == (equal, a.size)


@pytest.fixture
def pair(tmp_path):
    return dumps.write_pair(tmp_path)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_files_are_those_of_numpy(pair, threads):
    comparison = compared(pair.a, pair.b, pair.out, threads=threads)
    names = list(pair.first[0][0])
    for rank in (0, 1):
        expected = dumps.oracle_rows(pair.first[rank], pair.second[rank], range(3), names)
        folder = pair.out / f"rank{rank}"
        assert (folder / "similarities.csv").read_bytes() == dumps.csv_bytes(expected)
        one = comparison.ranks[rank]
        assert one.out == str(folder) and one.parameters == names
        np.testing.assert_array_equal(one.similarity, [row[1:] for row in expected[1:-1]])
        np.testing.assert_array_equal(one.summary, expected[-1][1:])


def test_numbers_as_python_writes_them(tmp_path):
    """Quotients down to 1e-5 and names that CSV quotes."""
    a = {0: {'a "quoted", name': np.ones(100_000), "b": np.ones(3)}}
    b = {0: {'a "quoted", name': -np.ones(100_000), "b": np.array([1.0, -1, 1])}}
    b[0]['a "quoted", name'][17] = 1.0
    dumps.write_dump(tmp_path / "a", {None: a})
    dumps.write_dump(tmp_path / "b", {None: b})
    compared(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    text = (tmp_path / "out" / "similarities.csv").read_bytes()
    assert text == dumps.csv_bytes(dumps.oracle_rows(a, b, [0], list(a[0])))
    assert b",1e-05\r\n" in text


def places(comparison):
    remarks = comparison.remarks()
    assert all(remark.startswith("not compared: ") for remark in remarks)
    return {remark.removeprefix("not compared: ") for remark in remarks}


def test_what_is_missing_is_told_and_the_rest_compared(pair):
    shutil.copytree(pair.a / "rank1", pair.a / "rank4")
    shutil.copytree(pair.b / "rank1", pair.b / "rank7")
    shutil.rmtree(pair.a / "rank0" / "step1")
    shutil.copytree(pair.b / "rank0" / "step2", pair.b / "rank0" / "step5")
    shutil.copytree(pair.b / "rank0" / "step2", pair.b / "rank0" / "step6")
    (pair.a / "rank1" / "step0" / "scale.npy").unlink()
    (pair.b / "rank1" / "step0" / "fc1.bias.npy").unlink()
    (pair.b / "rank1" / "step2" / "fc1.bias.npy").unlink()
    with pytest.warns(RuntimeWarning, match="^not compared: rank 4: only in the first and 4 more"):
        comparison = trainmon.compare_directions(pair.a, pair.b, pair.out, pictures=False)
    assert places(comparison) == {
        "rank 4: only in the first",
        "rank 7: only in the second",
        "rank 0: steps 1, 5 to 6: only in the second",
        "rank 1: scale at step 0: only in the second",
        "rank 1: fc1.bias at steps 0, 2: only in the first",
    }
    assert [rank.steps for rank in comparison.ranks] == [[0, 2], [0, 1, 2]]
    first, second = pair.first[1], pair.second[1]
    del first[0]["scale"], second[0]["fc1.bias"], second[2]["fc1.bias"]
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "scale"]
    expected = dumps.csv_bytes(dumps.oracle_rows(first, second, range(3), names))
    assert (pair.out / "rank1" / "similarities.csv").read_bytes() == expected
    verdict = json.loads((pair.out / "rank1" / "verdict.json").read_text())
    assert verdict["not_compared"] == [
        {"rank": 4, "what": "only in the first"},
        {"rank": 7, "what": "only in the second"},
        {"parameter": "fc1.bias", "steps": [0, 2], "what": "only in the first"},
        {"parameter": "scale", "steps": [0], "what": "only in the second"},
    ]


def test_what_is_damaged_is_told_and_the_rest_compared(pair):
    step = pair.a / "rank1" / "step1"
    other = pair.b / "rank1" / "step1"
    np.save(step / "fc1.weight.npy", np.ones((7, 5), bool))
    np.save(other / "fc1.bias.npy", np.ones(5, np.float32))
    (step / "fc2.weight.npy").write_bytes((step / "fc2.weight.npy").read_bytes()[:-1])
    (step / "scale.npy").unlink()
    packed = bytearray(dumps.sign_bytes([np.array(True)]))
    packed[-1] ^= 1
    (step / "scale.sign").write_bytes(packed)
    np.save(pair.b / "rank1" / "step2" / "scale.npy", np.array([None]), allow_pickle=True)
    with pytest.warns(RuntimeWarning):
        comparison = trainmon.compare_directions(pair.a, pair.b, pair.out, pictures=False)
    assert places(comparison) == {
        "rank 1: fc1.weight at step 1: sizes [7, 5] against [5, 7]",
        "rank 1: fc1.bias at step 1: the second: its elements are <f4, not bool",
        "rank 1: fc2.weight at step 1: the first: it is cut short",
        "rank 1: scale at step 1: the first: it is damaged: its checksum is another",
        "rank 1: scale at step 2: the second: its elements are |O, not bool",
    }
    first, second = pair.first[1], pair.second[1]
    first[1] = {}
    del first[2]["scale"]
    rows = dumps.oracle_rows(first, second, range(3), list(second[1]))
    rows[-1][2] = None  # nothing at all at that step
    assert (pair.out / "rank1" / "similarities.csv").read_bytes() == dumps.csv_bytes(rows)
    rows = dumps.oracle_rows(pair.first[0], pair.second[0], range(3), list(second[1]))
    assert (pair.out / "rank0" / "similarities.csv").read_bytes() == dumps.csv_bytes(rows)


def test_what_is_no_file_is_not_opened(pair):
    """A pipe would be waited for."""
    (pair.a / "rank0" / "step0" / "scale.npy").unlink()
    os.mkfifo(pair.a / "rank0" / "step0" / "scale.npy")
    (pair.a / "rank0" / "step0" / "odd.npy").mkdir()
    (pair.a / "rank0" / "step77").write_text("")
    (pair.a / "rank0" / "grad_summary_0.csv").unlink()
    os.mkfifo(pair.a / "rank0" / "grad_summary_0.csv")
    with pytest.warns(RuntimeWarning):
        comparison = trainmon.compare_directions(pair.a, pair.b, pair.out, pictures=False)
    assert places(comparison) == {
        "rank 0: scale at step 0: the first: it is no file",
        "rank 0: odd at step 0: only in the first",
    }


@pytest.mark.parametrize("newer", ["sign", "npy"])
def test_of_two_files_of_a_parameter_the_newer_counts(pair, newer):
    step = pair.a / "rank0" / "step1"
    signs = np.load(step / "scale.npy")
    (step / "scale.sign").write_bytes(dumps.sign_bytes([signs ^ (newer == "npy")]))
    np.save(step / "scale.npy", signs ^ (newer == "sign"))
    os.utime(step / f"scale.{'npy' if newer == 'sign' else 'sign'}", (1e9, 1e9))
    with pytest.warns(RuntimeWarning, match="^in doubt: rank 0: scale at step 1: the first has"):
        comparison = trainmon.compare_directions(pair.a, pair.b, pair.out, pictures=False)
    said = f"rank 0: scale at step 1: the first has .sign and .npy, of which .{newer} is newer"
    assert comparison.remarks() == [f"in doubt: {said} and counts"]
    assert (comparison.ranks[0].equal == comparison.ranks[0].elements).all()
    verdict = json.loads((pair.out / "rank0" / "verdict.json").read_text())
    assert verdict["not_compared"] == [] and len(verdict["doubts"]) == 1


def test_gradients_with_nan_are_in_doubt(tmp_path):
    """A NaN counts as a negative element does: only the summary knows."""
    names = ["a/b", "w%", "sound"]
    for dump, bad in (("a", {"a/b": "nan", "w%": "NaN"}), ("b", {"w%": "nan"})):
        folder = tmp_path / dump / "rank0"
        for step in (0, 1):
            (folder / f"step{step}").mkdir(parents=True)
            for file in ("a%2Fb", "w%25", "sound"):
                np.save(folder / f"step{step}" / f"{file}.npy", np.zeros(5, bool))
            norms = bad if step == 1 else {}
            lines = [f'{name},1.0,-1.0,{norms.get(name, "1.0")},"[5]"\r\n' for name in names]
            text = "\ufeffparam_name,max,min,norm,shape\r\n" + "".join(lines)
            (folder / f"grad_summary_{step}.csv").write_text(text, newline="")
    with pytest.warns(RuntimeWarning, match="^in doubt: .* and 1 more"):
        comparison = trainmon.compare_directions(
            tmp_path / "a", tmp_path / "b", tmp_path / "out", pictures=False
        )
    assert comparison.remarks() == [
        "in doubt: rank 0: a%2Fb at step 1: its gradient has NaN in the first",
        "in doubt: rank 0: w%25 at step 1: its gradient has NaN in both",
    ]
    assert comparison.ranks[0].parameters == ["a%2Fb", "w%25", "sound"]
    doubts = json.loads((tmp_path / "out" / "rank0" / "verdict.json").read_text())["doubts"]
    assert doubts[1] == {"parameter": "w%25", "steps": [1], "what": "its gradient has NaN in both"}


def fault(*arguments):
    with pytest.raises(RuntimeError) as caught:
        compared(*arguments)
    return str(caught.value)


def test_nothing_in_common_is_an_error_that_says_what_each_has(pair, tmp_path):
    only_two = dumps.write_dump(tmp_path / "c", {2: pair.first[0]})
    said = fault(pair.a, only_two, pair.out)
    assert said == (
        f"nothing to compare: {pair.a} has rank 0, 1, the first of them step 0, 1, 2;"
        f" {only_two} has rank 2, the first of them step 0, 1, 2"
    )
    later = dumps.write_dump(tmp_path / "d", {0: {8: pair.first[0][0]}})
    said = fault(pair.a, later, pair.out)
    assert f"{later} has rank 0, the first of them step 8" in said and str(pair.a) in said
    other = dumps.write_dump(tmp_path / "e", {0: {0: {"other": np.ones(3)}}})
    assert "; fc1.bias at step 0: only in the first" in fault(pair.a, other, pair.out)
    (tmp_path / "f" / "rank0").mkdir(parents=True)
    dumps.write_summary(tmp_path / "f" / "rank0", 0, ["w"])
    said = fault(pair.a, tmp_path / "f", pair.out)
    assert said.endswith("no step (grad_level L0 writes no directions)")
    (tmp_path / "g").mkdir()
    assert fault(tmp_path / "g", pair.a, pair.out).startswith(
        f"nothing to compare: {tmp_path / 'g'} has neither ranks nor steps; {pair.a} has"
    )
    assert not pair.out.exists()


def test_one_card(pair, tmp_path):
    """The manual's layout: no level of ranks, neither in a dump nor in the output."""
    one = dumps.write_dump(tmp_path / "one", {None: pair.first[0]})
    again = dumps.write_dump(tmp_path / "again", {3: pair.first[0]})
    for a, b in ((one, one), (one, again), (again, one), (pair.a / "rank0", pair.b / "rank0")):
        comparison = compared(a, b, pair.out)
        assert str(comparison) == "nothing suspicious in 4 parameters and 3 steps"
        assert sorted(os.listdir(pair.out)) == ["similarities.csv", "verdict.json"]
        rows = dumps.oracle_rows(pair.first[0], pair.first[0], range(3), list(pair.first[0][0]))
        assert (pair.out / "similarities.csv").read_bytes() == dumps.csv_bytes(rows)
        assert json.loads((pair.out / "verdict.json").read_text())["rank"] is None
        shutil.rmtree(pair.out)
    # Which of several ranks it is, nobody can tell.
    assert "has rank 0, 1" in fault(one, pair.b, pair.out)


def test_names_of_the_manuals_text(pair, tmp_path):
    """rank_0 and step_0, where its tree has rank0 and step0."""
    odd = tmp_path / "odd"
    shutil.copytree(pair.b, odd)
    for rank in (0, 1):
        for step in range(3):
            (odd / f"rank{rank}" / f"step{step}").rename(odd / f"rank{rank}" / f"step_{step}")
        (odd / f"rank{rank}").rename(odd / f"rank_{rank}")
    expected = compared(pair.a, pair.b, tmp_path / "out1")
    found = compared(pair.a, odd, tmp_path / "out2")
    for a, b in zip(expected.ranks, found.ranks):
        np.testing.assert_array_equal(a.equal, b.equal)


def test_order_is_that_of_the_summaries(tmp_path):
    """A parameter that comes later, or in the other dump alone, follows the one before it."""
    x = np.ones(3)
    a = {0: dict.fromkeys("zxa", x), 1: dict.fromkeys("zmxab", x)}
    b = {0: dict.fromkeys("zxaq", x), 1: dict.fromkeys("zmxabq", x)}
    a[1]["nowhere"] = b[1]["nowhere"] = x
    for name, steps in (("a", a), ("b", b)):
        dumps.write_dump(tmp_path / name, {0: steps})
        for step in steps:
            names = [n for n in steps[step] if n != "nowhere"]
            dumps.write_summary(tmp_path / name / "rank0", step, names)
    a[0]["q"] = a[1]["q"] = x
    for step in range(2):  # in no summary of the first
        np.save(tmp_path / "a" / "rank0" / f"step{step}" / "q.npy", x > 0)
    (rank,) = compare_with_gaps(tmp_path)
    assert rank.parameters == ["z", "m", "x", "a", "q", "b", "nowhere"]
    for path in (tmp_path / "a" / "rank0").glob("*.csv"):
        dumps.write_summary(path.parent, int(path.stem[-1]), ["b", "a"], head="Param_name")
    (rank,) = compare_with_gaps(tmp_path)
    assert rank.parameters == ["z", "m", "x", "b", "a", "q", "nowhere"]
    for path in tmp_path.glob("*/rank0/*.csv"):
        path.write_bytes(b"\xff\x00garbage")
    (rank,) = compare_with_gaps(tmp_path)
    assert rank.parameters == ["a", "b", "m", "nowhere", "q", "x", "z"]


def compare_with_gaps(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trainmon.compare_directions(
            folder / "a", folder / "b", folder / "out", pictures=False
        ).ranks


def test_wrong_arguments(pair, tmp_path):
    with pytest.raises(FileNotFoundError, match="path2: there is no directory .*missing"):
        compared(pair.a, tmp_path / "missing", pair.out)
    for keys, error, said in (
        ({"threads": 0}, ValueError, "threads must be from 1 to 256, not 0"),
        ({"threads": "x"}, TypeError, "threads must be an int, not str"),
        ({"threads": 1.5}, TypeError, "threads must be an int, not float"),
        ({"threads": True}, TypeError, "threads must be an int, not bool"),
        ({"progress": 5}, TypeError, "progress must be a function, not int"),
    ):
        with pytest.raises(error, match=said):
            compared(pair.a, pair.b, pair.out, **keys)
    good = {"path1": pair.a, "path2": pair.b, "out": pair.out}
    for name in good:
        for value, error, said in (
            (None, TypeError, "must be a path, not NoneType"),
            ("", ValueError, "must be a path, not empty"),
            ("a\0b", ValueError, "must be a path without NUL"),
        ):
            with pytest.raises(error, match=f"^{name} {said}"):
                trainmon.compare_directions(**(good | {name: value}), pictures=False)
    with pytest.raises(TypeError, match="pictures must be True or False, not 'no'"):
        trainmon.compare_directions(**good, pictures="no")
    (tmp_path / "taken").write_text("mine")
    with pytest.raises((OSError, RuntimeError), match="taken"):
        compared(pair.a, pair.b, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_memory_does_not_grow_with_files(tmp_path):
    """Two files of 600 MB with holes."""
    for name in ("a", "b"):
        folder = tmp_path / name / "step0"
        folder.mkdir(parents=True)
        size = 600_000_000
        np.save(folder / "w.npy", np.ones(1, bool))
        head = (folder / "w.npy").read_bytes()[:-1].replace(b"(1,)", f"({size},)".encode())
        head = head.replace(b" " * 8 + b"\n", b"\n")
        assert len(head) == 128
        with open(folder / "w.npy", "wb") as file:
            file.write(head)
            file.truncate(len(head) + size)
    code = (
        "import resource, sys, trainmon\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "(rank,) = trainmon.compare_directions(*sys.argv[1:], pictures=False).ranks\n"
        "print(rank.equal[0, 0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    command = [sys.executable, "-c", code, *(str(tmp_path / n) for n in ("a", "b", "out"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    equal, grown = map(int, done.stdout.split())
    assert equal == 600_000_000 and grown < 100_000  # KiB
