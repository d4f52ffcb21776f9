"""Reading back: the format document, the values against NumPy, merging, selections, errors."""

from __future__ import annotations

import math
import os
import shutil
import time
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import log_decoder
import trainmon
from written_run import WrittenRank

EPS = 1e-8


def arrays(rng):
    """Arrays of many types, shapes and contents."""
    special = np.array([1.0, np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -2.5], np.float32)
    return {
        "normal": rng.normal(size=(7, 11)).astype(np.float32),
        "half": rng.normal(size=50).astype(np.float16),
        "double": rng.normal(size=64) * 1e200,
        "tiny": rng.normal(size=64) * 1e-300,
        "special": special,
        "infinite": np.array([np.inf, 2.0], np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(3.5, np.float32),
        "strided": rng.normal(size=(8, 8)).astype(np.float32)[::2, ::-1],
        "ints": rng.integers(-1000, 1000, size=33, dtype=np.int32),
        "flags": rng.integers(0, 2, size=20).astype(bool),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run of several segments with every type of record, and what was put into it."""
    out = tmp_path_factory.mktemp("runs") / "run"
    rng = np.random.default_rng(1)
    rank = WrittenRank(out, segment_mb=0.01)
    fates = ["taken", "skipped", "taken", "unknown", "taken"] * 4
    for window, fate in enumerate(fates):
        for accum in range(2):
            for call in range(2):
                for name, array in arrays(rng).items():
                    rank.observe(array, "actv", name, window, accum, call, element="output")
            rank.monitor.seal("backward_end")
        for name, array in arrays(rng).items():
            rank.observe(array, "grad_reduced", name, window, replication="identical")
        rank.monitor.add_scalar("loss", window * 0.25)
        rank.end_step(fate, 1024.0 if fate == "skipped" else 1.0)
    rank.stop()
    return rank


def tolerance(array):
    """Sums of two-byte floats pass through float32 before they are float64."""
    return 1e-7 if array.dtype == np.float16 else 1e-12


def numpy_state(array):
    """What docs/formats.md says a row holds, computed by NumPy in the widest type it has."""
    wide = array.astype(np.longdouble).ravel()
    finite = wide[np.isfinite(wide)]
    return {
        "count": wide.size,
        "nans": int(np.isnan(wide).sum()),
        "pos_infs": int(np.isposinf(wide).sum()),
        "neg_infs": int(np.isneginf(wide).sum()),
        "zeros": int((np.abs(finite) < EPS).sum()),
        "sum": finite.sum(),
        "mean": finite.mean() if finite.size else 0,
        "m2": ((finite - finite.mean()) ** 2).sum() if finite.size else 0,
        "sum_sq": (finite**2).sum(),
        "min": finite.min() if finite.size else math.inf,
        "max": finite.max() if finite.size else -math.inf,
        "absmax": np.abs(finite).max() if finite.size else 0,
    }


def decoded_segments(directory):
    return [log_decoder.decode(path.read_bytes()) for path in sorted(directory.glob("*.tmlog"))]


def test_the_document_is_enough_to_decode_every_segment(written):
    segments = decoded_segments(written.directory)
    assert len(segments) > 3
    found = {}
    for number, segment in enumerate(segments):
        assert segment.start["number"] == number and segment.start["previous"] == number - 1
        assert segment.start["run_id"] == "test"
        assert {c: (kind, name) for c, (name, kind, _) in log_decoder.COLUMNS.items()} == (
            segment.columns
        )
        for batch in segment.batches:
            for row in batch["rows"]:
                series = segment.series[row["series"]]
                key = (series["kind"], series["name"], row["window"], row["accum"], row["call"])
                assert key not in found
                found[key] = (series, row)
    assert len(found) == len(written.seen)
    for (kind, name, arguments), window, accum, call, array in written.seen:
        series, row = found[kind, name, window, accum, call]
        assert series["dtype"] == array.dtype.name
        assert series["element"] == arguments.get("element", "")
        assert row["shape"] == list(array.shape)
        assert series["replication"] == arguments.get("replication", "independent")
        expected = numpy_state(array)
        near = tolerance(array)
        for statistic, value in expected.items():
            got = row[statistic]
            if statistic in ("m2", "sum_sq"):
                got = np.longdouble(got) * np.longdouble(4) ** row["exponent"]
            if statistic in ("sum", "mean"):  # cancels: relative to what was summed
                finite = np.abs(array[np.isfinite(array)].astype(np.longdouble))
                scale = finite.sum() / (1 if statistic == "sum" else max(finite.size, 1))
                assert abs(got - value) <= near * scale, (name, statistic)
            else:
                # By hand: the squares of "double" are beyond what approx() can compare.
                assert got == value or abs(got - value) <= near * abs(value), (name, statistic)


def test_sizes_name_where_the_segment_before_ends(written):
    paths = sorted(written.directory.glob("*.tmlog"))
    segments = decoded_segments(written.directory)
    for path, following in zip(paths[:-1], segments[1:], strict=True):
        assert following.start["previous_bytes"] == path.stat().st_size


def test_outcomes_and_scalars_in_the_file(written):
    batches = [b for s in decoded_segments(written.directory) for b in s.batches]
    outcomes = [o for b in batches for o in b.get("outcomes", [])]
    assert [o["window"] for o in outcomes] == list(range(20))
    assert [o["fate"] for o in outcomes[:5]] == ["taken", "skipped", "taken", "unknown", "taken"]
    assert [(o["step"], o["attempt"]) for o in outcomes[:5]] == [
        (0, 0), (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    scalars = [s for b in batches for s in b.get("scalars", [])]
    assert [s["value"] for s in scalars] == [window * 0.25 for window in range(20)]
    alerts = [a for b in batches for a in b.get("alerts", [])]
    assert {a["rule"] for a in alerts} == {"non_finite"}


def test_read_gives_what_numpy_gives(written):
    table = trainmon.read_table(written.directory.parents[1])
    assert table.num_rows == len(written.seen) == len(table["norm"])
    place = {}
    for i in range(table.num_rows):
        key = [table[c][i] for c in ("kind", "name", "window", "accum", "call")]
        place[tuple(key)] = i
    for (kind, name, _), window, accum, call, array in written.seen:
        i = place[kind, name, window, accum, call]
        wide = array.astype(np.float64)
        assert table["count"][i] == array.size
        assert table["nans"][i] == np.isnan(wide).sum()
        assert table["infs"][i] == np.isinf(wide).sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if array.size:
                scale = np.abs(wide).max()
                norm = np.sqrt(np.square(wide / scale).sum()) * scale
                for statistic, value in {
                    "norm": norm if np.isfinite(scale) else scale,
                    "min": wide.min(),
                    "max": wide.max(),
                    "absmax": np.abs(wide).max(),
                    "zeros": (np.abs(wide) < EPS).sum() / wide.size,
                }.items():
                    got = table[statistic][i]
                    near = tolerance(array)
                    assert got == pytest.approx(value, rel=near, nan_ok=True), (name, statistic)
            else:
                assert table["norm"][i] == 0 and np.isnan(table["mean"][i])


def test_steps_attempts_and_order(written):
    table = trainmon.read_table(
        written.directory.parents[1], kinds="grad_reduced", include="normal"
    )
    fates = [("taken", 0), ("skipped", 0), ("taken", 1), ("unknown", 0), ("taken", 1)] * 4
    assert list(zip(table["fate"], table["attempt"], strict=True)) == fates
    steps = [0, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6, 7, 7, 8, 8, 9, 10, 10, 11, 11]
    assert list(table["step"]) == steps
    assert list(table["loss_scale"]) == [1024.0 if f == "skipped" else 1.0 for f, _ in fates]
    assert np.all(np.diff(table["seq"]) > 0)
    scalars = trainmon.read_table(written.directory.parents[1]).scalars
    assert list(scalars["name"]) == ["loss"] * 20
    assert list(scalars["step"]) == steps


def test_columns_are_numpy_arrays_of_fixed_types(written):
    table = trainmon.read_table(written.directory.parents[1], stats=["norm", "nans"])
    key = "restart rank kind chunk name element optimizer step attempt micro_step call seq flags"
    assert list(table)[:13] == key.split()
    assert list(table)[-2:] == ["norm", "nans"]
    assert table["norm"].dtype == np.float64 and table["nans"].dtype == np.int64
    assert table["name"].dtype == object and table["step"].dtype == np.int64
    assert (table["kind"] == "actv").sum() > 0
    assert "max" not in table
    assert table.kinds == ["actv", "grad_reduced"] and table.ranks == [0]
    assert table.damage == [] and table.gaps == [] and table.torn_tails == 0


def test_distinct(written):
    table = trainmon.read_table(written.directory.parents[1], include="special", stats=["nans"])
    assert table.distinct("kind") == ["actv", "grad_reduced"]  # of the rows, not of the run
    assert table.distinct("name") == ["special"] and table.distinct("nans") == [1]
    assert table.distinct("step") == list(range(12))
    with pytest.raises(KeyError, match="did you mean 'name'"):
        table.distinct("nam")


def test_to_pandas(written):
    table = trainmon.read_table(written.directory.parents[1], stats=["norm"])
    frame = table.to_pandas()
    assert list(frame.columns) == list(table)
    for column in table:
        np.testing.assert_array_equal(frame[column].to_numpy(), table[column])
    assert frame.groupby("kind", observed=True)["norm"].size()["grad_reduced"] == 20 * 11


def test_read_is_a_frame(written):
    """A plain way in: the frame pandas itself makes of the columns, filtered as asked."""
    import pandas as pd

    run = written.directory.parents[1]
    frame = trainmon.read(run, kinds="actv", include="special", steps=(2, 4), stats="nans")
    assert type(frame) is pd.DataFrame
    expected = [
        (window, accum, call, int(np.isnan(array).sum()))
        for (kind, name, _), window, accum, call, array in written.seen
        if (kind, name) == ("actv", "special") and 3 <= window <= 7
    ]
    found = frame[["window", "accum", "call", "nans"]].itertuples(index=False, name=None)
    assert sorted(found) == sorted(expected) and len(expected) == 5 * 4
    assert set(frame["step"]) == {2, 3, 4} and set(frame["name"]) == {"special"}


def test_read_without_pandas_is_a_dict(written):
    import subprocess
    import sys

    code = (
        "import sys\n"
        "sys.modules['pandas'] = None  # what import then finds is ModuleNotFoundError\n"
        "import numpy as np, trainmon\n"
        f"columns = trainmon.read({os.fspath(written.directory.parents[1])!r}, stats='nans')\n"
        "assert type(columns) is dict and list(columns)[0] == 'restart'\n"
        "assert all(type(c) is np.ndarray for c in columns.values())\n"
        "print(len(columns['name']), columns['nans'].sum())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    nans = sum(int(np.isnan(array.astype(float)).sum()) for *_, array in written.seen)
    assert done.stdout.split() == [str(len(written.seen)), str(nans)]


def test_selections(written):
    run = written.directory.parents[1]
    everything = trainmon.read_table(run).num_rows
    assert trainmon.read_table(run, kinds=["grads"]).num_rows == 20 * 11
    assert trainmon.read_table(run, kinds=["grads", "actv"]).num_rows == everything
    assert set(trainmon.read_table(run, include=["normal", "half"])["name"]) == {"normal", "half"}
    assert set(trainmon.read_table(run, exclude="normal")["name"]) == set(arrays_names()) - {
        "normal"
    }
    assert set(trainmon.read_table(run, steps=3)["step"]) == {3}
    assert set(trainmon.read_table(run, steps=(10, None))["step"]) == {10, 11}
    assert trainmon.read_table(run, ranks=[0]).num_rows == everything
    assert trainmon.read_table(run, ranks=7).num_rows == 0


def arrays_names():
    return arrays(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("arguments", "error", "parts"),
    [
        ({"stats": ["nrm"]}, ValueError, ["stats", "'nrm'", "'norm'", "absmax"]),
        ({"stats": 3}, TypeError, ["stats", "int"]),
        ({"kinds": ["gradz"]}, ValueError, ["kinds", "'gradz'", "'grads'", "actv grad_reduced"]),
        ({"kinds": [3]}, TypeError, ["kinds"]),
        ({"include": b"x"}, TypeError, ["include"]),
        ({"ranks": "0"}, TypeError, ["ranks"]),
        ({"ranks": [0.5]}, TypeError, ["ranks", "float"]),
        ({"ranks": [0, -1]}, ValueError, ["ranks", "-1"]),
        ({"ranks": 2**31}, ValueError, ["ranks", "2147483648"]),
        ({"steps": 2**63}, ValueError, ["steps", "9223372036854775808"]),
        ({"steps": (5, 3)}, ValueError, ["steps", "5", "3"]),
        ({"steps": "1:2"}, TypeError, ["steps"]),
        ({"steps": (1.5, 2)}, TypeError, ["steps"]),
    ],
)
def test_wrong_arguments_are_named(written, arguments, error, parts):
    with pytest.raises(error) as caught:
        trainmon.read_table(written.directory.parents[1], **arguments)
    for part in parts:
        assert part in str(caught.value)


def test_only_a_wrong_kind_is_blamed_on_kinds(written):
    run = written.directory.parents[1]
    for arguments, said in [
        ({"kinds": ["gradz"]}, "kinds: unknown kind 'gradz' "),
        ({"ranks": [0, -1]}, "ranks: -1 is no rank"),
        ({"steps": (5, 3)}, "steps: "),
        ({"kinds": ["gradz"], "ranks": [-1]}, "ranks: -1 is no rank"),
    ]:
        with pytest.raises(ValueError, match="^" + said):
            trainmon.read_table(run, **arguments)
    # Kinds of a rank that is not there are not known, so none can be called wrong.
    assert trainmon.read_table(run, ranks=7, kinds="exp_avg").num_rows == 0


def test_missing_runs_are_named(written, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such directory"):
        trainmon.read_table(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="did you mean .*/run"):
        trainmon.read_table(written.directory.parents[2])
    with pytest.raises(TypeError, match="run must be a path"):
        trainmon.read_table(3)
    with pytest.raises(KeyError, match="norm"):
        trainmon.read_table(written.directory.parents[1])["nrom"]
    with pytest.raises(ValueError, match="count"):
        trainmon.top(written.directory.parents[1], count=0)
    with pytest.raises(TypeError, match="stat"):
        trainmon.top(written.directory.parents[1], stat=["norm"])


def test_the_home_directory_is_that_of_watch(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    rank = WrittenRank(tmp_path / "a")
    rank.observe(np.ones(3), "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    assert trainmon.read_table("~/a").num_rows == 1
    assert trainmon.diagnose("~/a")["verdict"] is None
    assert trainmon.query("~/a", "SELECT count(*) FROM rows").rows == [(1,)]


def test_first_bad_and_top(tmp_path):
    out = tmp_path / "run"
    rng = np.random.default_rng(2)
    ranks = [WrittenRank(out, rank, 2) for rank in range(2)]
    peaks = {}
    for window in range(8):
        for number, rank in enumerate(ranks):
            for name in ("a", "b", "c"):
                array = rng.normal(size=20).astype(np.float32)
                if (number, name, window) in [(1, "b", 5), (0, "a", 6), (1, "c", 6)]:
                    array[3] = np.nan
                elif name != "b":
                    peak = float(np.abs(array).max())
                    peaks[name] = max(peaks.get(name, (0,)), (peak, window, number))
                rank.observe(array, "grad_reduced", name, window)
            rank.end_step()
    for rank in ranks:
        rank.stop()
    found = trainmon.first_bad(out)
    assert (found.step, found.rank, found.name, found.ranks) == (5, 1, "b", (1,))
    assert found.stats["nans"] == 1 and math.isnan(found.stats["norm"])
    assert trainmon.first_bad(out, steps=(None, 4)) is None
    assert trainmon.first_bad(out, ranks=0).step == 6
    ranked = trainmon.top(out, "absmax", 2, by="size", steps=(0, 4), exclude="b")
    before = {n: v for n, v in peaks.items() if v[1] <= 4}
    for row in ranked:
        if row.name in before:
            assert (row.value, row.step, row.rank) == before[row.name]
    assert [row.value for row in ranked] == sorted((r.value for r in ranked), reverse=True)
    assert math.isnan(trainmon.top(out, "absmax", 1, by="size")[0].value)


@pytest.mark.parametrize("cuts", [[0, 500, 1000], [0, 0, 1, 999, 1000]])
def test_merged_shards_are_the_concatenated_tensor(tmp_path, cuts):
    out = tmp_path / "run"
    rng = np.random.default_rng(3)
    whole = {name: rng.normal(3, 2, size=1000).astype(np.float32) for name in ("w", "v")}
    whole["v"][700] = np.inf
    world = len(cuts) - 1
    for number in range(world):
        rank = WrittenRank(out, number, world)
        begin, end = cuts[number], cuts[number + 1]
        for name, array in whole.items():
            rank.observe(array[begin:end], "param_origin", name, 0, space="flat",
                         ranges=[(begin, end)], full_shape=[10, 100], replication="union")  # fmt: skip
        rank.end_step()
        rank.stop()
    table = trainmon.read_table(out, merged=True)
    assert list(table["name"]) == ["w", "v"] and list(table["rank"]) == [-1, -1]
    assert list(table["count"]) == [1000, 1000]
    assert table["flags"][0] == 0
    wide = whole["w"].astype(np.float64)
    assert table["norm"][0] == pytest.approx(np.linalg.norm(wide), rel=1e-12)
    assert table["mean"][0] == pytest.approx(wide.mean(), rel=1e-12)
    assert table["std"][0] == pytest.approx(wide.std(), rel=1e-12)
    assert table["min"][0] == wide.min() and table["max"][0] == wide.max()
    assert table["norm"][1] == np.inf and table["infs"][1] == 1
    assert trainmon.read_table(out).num_rows == 2 * world


def test_merged_activations_are_the_concatenated_batches(tmp_path):
    out = tmp_path / "run"
    rng = np.random.default_rng(4)
    parts = [rng.normal(size=(n, 6)).astype(np.float32) for n in (3, 1, 8)]
    for number, part in enumerate(parts):
        rank = WrittenRank(out, number, 3)
        rank.observe(part, "actv", "mlp", 0, element="output", replication="union")
        rank.observe(part, "grad_unreduced", "w", 0, replication="partial")
        rank.observe(parts[0], "param_origin", "w", 0, replication="identical")
        rank.end_step()
        rank.stop()
    table = trainmon.read_table(out, merged=True)
    wide = np.concatenate(parts).astype(np.float64)
    (i,) = np.flatnonzero(table["kind"] == "actv")
    assert table["count"][i] == wide.size and table["rank"][i] == -1
    assert table["norm"][i] == pytest.approx(np.linalg.norm(wide), rel=1e-12)
    assert table["std"][i] == pytest.approx(wide.std(), rel=1e-12)
    kinds = list(table["kind"])
    assert kinds.count("grad_unreduced") == 3 and kinds.count("param_origin") == 1


def test_a_living_run_can_be_read(tmp_path):
    rank = WrittenRank(tmp_path / "run", flush_seconds=0.05)
    for window in range(5):
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", window)
        rank.end_step()
    deadline = time.monotonic() + 20
    while (rows := trainmon.read_table(tmp_path / "run").num_rows) < 5:
        assert time.monotonic() < deadline, f"only {rows} rows"
        time.sleep(0.02)
    rank.stop()


def closed_run(folder):
    """Ten rows of one rank, and the segment that holds them."""
    rank = WrittenRank(folder)
    for window in range(10):
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    (segment,) = rank.directory.glob("*.tmlog")
    return rank, segment


def test_damage_is_warned_about_and_listed(tmp_path):
    rank, segment = closed_run(tmp_path / "run")
    data = bytearray(segment.read_bytes())
    data[-40] ^= 1
    segment.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="could not be used.*checksum"):
        table = trainmon.read_table(tmp_path / "run")
    assert 0 < table.num_rows < 10
    assert table.damage[0][0] == os.fspath(segment)


@pytest.mark.parametrize("loss", ["deleted", "emptied", "cut"])
def test_a_lost_log_of_a_closed_run_is_damage(tmp_path, loss):
    rank, segment = closed_run(tmp_path / "run")
    data = segment.read_bytes()
    left = 0
    if loss == "deleted":
        segment.unlink()
    elif loss == "emptied":
        segment.write_bytes(b"")
    else:
        segment.write_bytes(data[: data.index(b"tmFR", len(data) // 2)])
        left = sum(len(b["rows"]) for b in log_decoder.decode(segment.read_bytes()).batches)
        assert 0 < left < 10
    what = f"health.json says 10 rows were written, the log holds {left}"
    with pytest.warns(RuntimeWarning, match=f"could not be used.*{what}"):
        table = trainmon.read_table(tmp_path / "run")
    assert table.num_rows == left
    assert table.damage == [(os.fspath(rank.directory), 0, what)]
    for question in (trainmon.first_bad, trainmon.top):
        with pytest.warns(RuntimeWarning, match=what):
            question(tmp_path / "run")


def test_a_missing_rank_is_warned_about_and_listed(tmp_path):
    out = tmp_path / "run"
    ranks = [WrittenRank(out, number, 3) for number in range(3)]
    for rank in ranks:
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", 0)
        rank.end_step()
        rank.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainmon.read_table(out).missing_ranks == []
    shutil.rmtree(ranks[1].directory.parent)
    with pytest.warns(RuntimeWarning, match="rank 1 of 3 is missing") as caught:
        table = trainmon.read_table(out)
    assert [warning.filename for warning in caught] == [__file__]
    assert table.missing_ranks == [1] and table.ranks == [0, 2] and table.damage == []
    for question in (trainmon.first_bad, trainmon.top):
        with pytest.warns(RuntimeWarning, match="rank 1 of 3 is missing") as caught:
            question(out)
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(RuntimeWarning, match="rank 1 of 3 is missing"):
        trainmon.read_table(out, ranks=[0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainmon.read_table(out, ranks=[0, 2]).missing_ranks == []


def test_ranks_that_the_config_left_out_are_not_missing(tmp_path):
    rank = WrittenRank(tmp_path / "run", 2, 4, ranks=[2])
    rank.observe(np.ones(4, np.float32), "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainmon.read_table(tmp_path / "run").missing_ranks == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    values=st.lists(st.floats(width=32), min_size=1, max_size=5),
)
def test_any_name_and_any_value_come_back(tmp_path_factory, names, values):
    out = tmp_path_factory.mktemp("any") / "run"
    rank = WrittenRank(out)
    for name in names:
        rank.observe(np.array(values, np.float32), "grad_reduced", name, 0)
    rank.end_step()
    rank.stop()
    table = trainmon.read_table(out)
    assert list(table["name"]) == names
    assert list(table["nans"]) == [sum(math.isnan(v) for v in values)] * len(names)
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) == len(values):
        assert set(table["max"]) == {max(np.float32(v) for v in values)}


def test_reading_needs_no_framework(tmp_path, written):
    import subprocess
    import sys

    code = (
        "import sys, trainmon\n"
        "assert callable(trainmon.top) and callable(trainmon.read_table)\n"
        f"assert trainmon.read_table({os.fspath(written.directory.parents[1])!r}).num_rows\n"
        "assert not {'torch', 'mindspore', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
