"""Pictures: what is put into them, against arrays made by hand; and that files of each kind come out."""

from __future__ import annotations

import os
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
import torch

import trainmon
from trainmon import marks
from trainmon.marks import ABSENT, DROPPED, INF, NAN, VALUE
from written_run import WrittenRank

NOT_READY = 32


class Rows(dict):
    """Stands for a table: columns and gaps."""

    gaps = ()

    def distinct(self, name):
        return sorted(set(self[name]))


def rows(*lines, gaps=()):
    """Of (step, seq, value) or (step, seq, value, flags), all of rank 0."""
    lines = [(*line, 0)[:4] for line in lines]
    table = Rows(
        step=np.array([line[0] for line in lines], np.int64),
        seq=np.array([line[1] for line in lines], np.int64),
        norm=np.array([line[2] for line in lines], np.float64),
        flags=np.array([line[3] for line in lines], np.uint32),
        rank=np.zeros(len(lines), np.int32),
        restart=np.zeros(len(lines), np.int32),
        kind=np.array(["grad_reduced"] * len(lines), dtype=object),
        name=np.array(["w"] * len(lines), dtype=object),
    )
    table.gaps = [
        {"rank": 0, "restart": 0, "first_seq": first, "last_seq": last} for first, last in gaps
    ]
    return table


@pytest.mark.parametrize(
    "there, axis",
    [
        ([5], [5]),
        ([3, 1, 1], [1, 3]),
        ([0, 1, 2, 5, 6], [0, 1, 2, 3, 4, 5, 6]),
        ([0, 3, 6, 9], [0, 3, 6, 9]),  # every third step is no hole
        ([0, 3, 6, 15, 18], [0, 3, 6, 9, 12, 15, 18]),
        ([0, 1, 2, 4, 6, 8], [0, 1, 2, 3, 4, 6, 8]),  # every second step from 2 on
        ([0, 1, 10], [*range(11)]),
        ([0, 9, 10], [*range(11)]),
        ([0, 10, 13, 14], [0, 3, 6, 9, 10, 11, 12, 13, 14]),
    ],
)
def test_axis(there, axis):
    assert marks.step_axis(np.array(there)).tolist() == axis


def test_a_long_pause_is_one_step_of_the_axis():
    got = marks.step_axis(np.array([0, 1, 10**12, 10**12 + 1]))
    assert got.tolist() == [0, 1, 2, 10**12, 10**12 + 1]


def test_the_four_marks():
    table = rows(
        (0, 0, 1.5), (1, 1, np.nan), (2, 2, np.inf), (3, 3, -np.inf), (4, 4, 9.0, NOT_READY),
        (7, 9, 0.0),
    )  # fmt: skip
    axis = np.arange(8)
    lost = np.array([0, 0, 0, 0, 0, 1, 0, 1], bool)  # at 7 a row came through
    shown = marks.grid(table, "norm", np.zeros(6, int), ["w"], axis, lost)
    assert shown.state.tolist() == [[VALUE, NAN, INF, INF, DROPPED, DROPPED, ABSENT, VALUE]]
    assert shown.values[0, [0, 7]].tolist() == [1.5, 0.0]
    assert len({VALUE, NAN, INF, DROPPED, ABSENT}) == 5
    assert shown.about == "grad_reduced w"


def test_several_rows_of_a_cell():
    table = rows(
        (0, 0, -7.0), (0, 1, 3.0),
        (1, 2, np.inf), (1, 3, 1.0),
        (2, 4, np.nan), (2, 5, np.inf),
        (3, 6, 2.0), (3, 7, 9.0, NOT_READY),
    )  # fmt: skip
    never = np.zeros(4, bool)
    owner = np.zeros(8, int)
    last = marks.grid(table, "norm", owner, ["w"], np.arange(4), never)
    assert last.state.tolist() == [[VALUE, INF, NAN, VALUE]]
    assert last.values[0, [0, 3]].tolist() == [3.0, 2.0]
    largest = marks.grid(table, "norm", owner, ["w"], np.arange(4), never, largest=True)
    assert largest.state.tolist() == last.state.tolist()
    assert largest.values[0, [0, 3]].tolist() == [-7.0, 2.0]


def test_rows_go_to_their_labels():
    table = rows((0, 0, 1.0), (0, 1, 2.0), (1, 2, 3.0))
    shown = marks.grid(
        table, "norm", np.array([1, 0, 1]), ["a", "b"], np.arange(2), np.zeros(2, bool)
    )
    assert shown.state.tolist() == [[VALUE, ABSENT], [VALUE, VALUE]]
    assert shown.values[1].tolist() == [1.0, 3.0] and shown.values[0, 0] == 2.0


@pytest.mark.parametrize(
    "gap, steps",
    [
        ((4, 5), [2]),  # steps 0, 1, 3 have the numbers 0-1, 2-3, 6-7: all of step 2 is lost
        ((1, 1), [0]),
        ((3, 3), [1]),
        ((2, 6), [1, 2, 3]),
        ((8, 90), [3]),  # could be the end of step 3
    ],
)
def test_the_steps_a_gap_lies_in(gap, steps):
    table = rows(
        (0, 0, 1.0), (0, 1, 1.0), (1, 2, 1.0), (1, 3, 1.0), (3, 6, 1.0), (3, 7, 1.0), gaps=[gap]
    )
    lost = marks.lost(table, np.arange(4))
    assert list(lost) == [0]
    hit = np.flatnonzero(lost[0]).tolist()
    # At the ends of a step a gap may be of it or of the step beside it: both are marked.
    assert set(steps) <= set(hit) <= set(steps) | {s + d for s in steps for d in (-1, 1)}
    if gap == (2, 6):
        assert 0 not in hit
    if gap == (4, 5):
        assert 0 not in hit
    if gap == (8, 90):
        assert hit == [3]


def test_nothing_is_lost_without_gaps():
    assert marks.lost(rows((0, 0, 1.0)), np.arange(3)) == {}


def test_everything_of_a_rank_lost():
    lost = marks.lost(rows(gaps=[(0, 9)]), np.arange(3))
    assert lost[0].tolist() == [True, True, True]


def test_binning_keeps_the_worst():
    columns = 10_000
    values = np.ones((4, columns))
    values[1, 5] = -50.0
    state = np.full((4, columns), VALUE, np.uint8)
    state[0, 4321], state[2, 9999], state[3, 0], state[3, 1] = NAN, INF, DROPPED, ABSENT
    state[3, 200:400] = ABSENT
    shown = marks.Grid(np.arange(columns) * 3, list("abcd"), values, state)
    small, first = marks.binned(shown, 2, 100)
    assert small.state.shape == (2, 100) and first.tolist() == [0, 2] and small.labels == ["a", "c"]
    assert np.argwhere(small.state == NAN).tolist() == [[0, 43]]
    assert np.argwhere(small.state == INF).tolist() == [[1, 99]]
    assert np.argwhere(small.state == DROPPED).tolist() == [[1, 0]]
    assert small.values[0, 0] == -50.0 and small.values[0, 1] == 1.0
    assert small.state[1, 2] == VALUE  # of row c; d alone is absent
    assert small.steps[[0, 1, 99]].tolist() == [0, 300, 29_700]
    own, _ = marks.binned(marks.Grid(shown.steps, ["d"], values[3:], state[3:]), 2, 100)
    assert own.state[0, :5].tolist() == [DROPPED, VALUE, ABSENT, ABSENT, VALUE]


def test_a_small_grid_is_left_alone():
    shown = marks.Grid(np.arange(3), ["a"], np.ones((1, 3)), np.zeros((1, 3), np.uint8))
    assert marks.binned(shown, 5, 5)[0] is shown


def test_names():
    name = "model.layers.11.mlp.experts.7.down_proj.weight"
    short = marks.shortened(name, 20)
    assert len(short) == 20 and short == "model.l…_proj.weight"
    assert marks.shortened(name, len(name)) == name


def test_names_in_a_column():
    names = [f"model.layers.{i}.mlp.{part}.weight" for i in (9, 10) for part in ("up", "down")]
    assert marks.shortened_together(names, 40) == (names, "")
    short, cut = marks.shortened_together(names, 20)
    assert short == ["9.mlp.up", "9.mlp.down", "10.mlp.up", "10.mlp.down"]
    assert cut == "model.layers.….weight"
    assert marks.shortened_together(["a.a.a", "a.a"], 3) == (["a.a", "a"], "a.…")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two ranks, six steps: rank 1 has a NaN at step 2 and an Inf at step 3 in b, c is not there
    at step 4; rank 0 is sound."""
    out = tmp_path_factory.mktemp("runs") / "run"
    for rank in range(2):
        writer = WrittenRank(out, rank, 2)
        for step in range(6):
            for number, name in enumerate("abc"):
                array = np.full(4, (number + 1) * 10.0**rank, np.float32)
                if rank == 1 and name == "b" and step in (2, 3):
                    array[0] = np.nan if step == 2 else np.inf
                if not (rank == 1 and name == "c" and step == 4):
                    writer.observe(array, "grad_reduced", name, step)
            writer.end_step()
        writer.stop()
    return out


def everything(**changed):
    names = ("kinds", "include", "exclude", "ranks", "steps")
    return {**dict.fromkeys(names), "all_restarts": False, "merged": False, **changed}


@pytest.fixture
def reader():
    from trainmon.arguments import Reader

    return Reader("test")


def test_layers(run, reader):
    from trainmon import plot

    shown = plot.layers_grid(str(run), everything(ranks=[1]), "max", reader)
    assert shown.labels == ["a", "b", "c"] and shown.steps.tolist() == [0, 1, 2, 3, 4, 5]
    V = VALUE
    assert shown.state.tolist() == [[V] * 6, [V, V, NAN, INF, V, V], [V, V, V, V, ABSENT, V]]
    assert shown.values[:, 0].tolist() == [10.0, 20.0, 30.0]
    both = plot.layers_grid(str(run), everything(), "max", reader)
    assert both.state[2].tolist() == [V] * 6 and both.values[2].tolist() == [30.0] * 4 + [3.0, 30.0]


def test_ranks(run, reader):
    from trainmon import plot

    shown = plot.ranks_grid(str(run), everything(include=["c"]), "max", reader)
    assert shown.labels == ["0", "1"]
    assert shown.state.tolist() == [[VALUE] * 6, [VALUE] * 4 + [ABSENT, VALUE]]
    assert shown.values[:, 0].tolist() == [3.0, 30.0] and reader.exit_code == 0


def test_a_missing_rank_is_a_row(tmp_path, reader):
    from trainmon import plot

    writer = WrittenRank(tmp_path / "run", 1, 3)
    writer.observe(np.ones(2, np.float32), "grad_reduced", "w", 0)
    writer.end_step()
    writer.stop()
    shown = plot.ranks_grid(str(tmp_path / "run"), everything(), "max", reader)
    assert shown.labels == ["0 (missing)", "1", "2 (missing)"]
    assert shown.state.tolist() == [[ABSENT], [VALUE], [ABSENT]] and reader.exit_code == 3


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Two ranks that hold the same; of ten steps, pairs are recorded; b is not there at step 4, and
    differs at step 8."""
    out = tmp_path_factory.mktemp("runs") / "planned"
    for rank in range(2):
        writer = WrittenRank(out, rank, 2)
        for step in (0, 1, 4, 5, 8, 9):
            for name in "ab":
                array = np.full(4, 1.0 + step, np.float32)
                if name == "b" and step == 8:
                    array[0] = 7.0 + rank
                if not (name == "b" and step == 4):
                    writer.observe(array, "grad_reduced", name, step)
            writer.end_step()
        writer.stop()
    return out


def test_a_step_that_nobody_recorded_is_no_gap(planned, reader):
    from trainmon import plot

    whole = plot.layers_grid(str(planned), everything(), "max", reader)
    assert whole.steps.tolist() == [0, 1, 4, 5, 8, 9]
    assert whole.state.tolist() == [[VALUE] * 6, [VALUE, VALUE, ABSENT, VALUE, VALUE, VALUE]]
    # What others have in step 4 is looked up where a tensor is asked for alone.
    alone = plot.layers_grid(str(planned), everything(include=["b"]), "max", reader)
    assert alone.steps.tolist() == [0, 1, 4, 5, 8, 9] and alone.state[0, 2] == ABSENT


def test_ranks_that_hold_the_same_are_one_line(planned, run, reader):
    from trainmon import plot

    shown = plot.series_grid(str(planned), everything(), "mean", reader)
    assert shown.labels == ["all ranks a", "rank 0 b", "rank 1 b"]
    assert shown.values[0].tolist() == [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]
    assert shown.values[1:, 4].tolist() == [8.5, 8.75]
    # In their largest elements the ranks do not differ.
    assert plot.series_grid(str(planned), everything(), "max", reader).labels == ["a", "b"]
    same = plot.series_grid(str(planned), everything(include=["a"]), "max", reader)
    assert same.labels == ["a"] and same.values.shape == (1, 6)
    apart = plot.series_grid(str(run), everything(), "max", reader)
    assert len(apart.labels) == 6


def test_series(run, reader):
    from trainmon import plot

    shown = plot.series_grid(str(run), everything(include=["b"]), "max", reader)
    assert shown.labels == ["rank 0", "rank 1"] and shown.about == "grad_reduced b"
    assert shown.state[1].tolist() == [VALUE, VALUE, NAN, INF, VALUE, VALUE]
    few = plot.most_telling(plot.series_grid(str(run), everything(), "max", reader), 2)
    assert few.labels == ["rank 1 b", "rank 1 c"]  # the one that is bad, the largest of the others
    assert plot.most_telling(few, 1).labels == ["rank 1 b"]
    assert plot.most_telling(few, 2) is few


def test_compare(run, tmp_path, reader):
    from trainmon import plot

    writer = WrittenRank(tmp_path / "other")
    for step in range(6):  # every second one is recorded
        for number, name in enumerate("abc" if step % 2 == 0 else ""):
            array = np.full(4, number + 1 + (name == "c") * step, np.float32)
            writer.observe(array, "grad_reduced", name, step)
        writer.end_step()
    writer.stop()
    runs = [str(run), str(tmp_path / "other")]
    lines, count = plot.compare_lines(runs, everything(ranks=[0]), "max", reader)
    assert count == 3
    assert [line.label for line in lines[:2]] == ["c run", "c other"]  # it alone differs
    assert lines[0].values.tolist() == [3.0] * 6 and lines[1].values.tolist() == [3.0, 5.0, 7.0]
    assert [line.label for line in lines[2:]] == ["a run", "a other", "b run", "b other"]


def test_histogram(tmp_path, reader):
    """What the payloads hold, the largest bin on top."""
    import torch

    import trainmon
    from trainmon import plot

    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    mon = trainmon.watch(model, optimizer, kinds=["update_ratio"], every=1, out=tmp_path / "run")
    for step in range(3):
        optimizer.zero_grad()
        model.weight.grad = torch.full((4, 4), 1.0 if step == 0 else 0.5)
        optimizer.step()
    mon.stop()
    payloads = trainmon.read_table(tmp_path / "run").payloads
    for element in ("update", "ratio"):
        shown = plot.histogram_grid(str(tmp_path / "run"), everything(), reader, element)
        assert shown.steps.tolist() == [0, 1, 2] and (shown.state == VALUE).all()
        low, high = (float(end) for end in shown.labels[1].split(" to "))
        assert (
            shown.labels[0] == f"> {high:g}" and shown.labels[-1] == f"< {-high:g}" and low < high
        )
        found = [p["value"] for p in payloads if p["element"] == element]
        assert len(found) == 3
        for step, one in enumerate(found):
            parts = [one.above, *one.counts[::-1], one.below]
            np.testing.assert_allclose(shown.values[:, step] * 16, parts)


def test_histogram_with_nans(tmp_path, reader, monkeypatch):
    """Two tensors in one column, one of them with a NaN."""
    from trainmon import plot, reading

    edges = np.array([0.0, 1.0, 2.0])

    def one(step, counts, below=0, above=0, nans=0):
        value = reading.Histogram(edges, np.array(counts), below, above, nans)
        return {
            "kind": "update_ratio",
            "name": "w",
            "element": "update",
            "step": step,
            "value": value,
        }

    class Table:
        kinds = ["update_ratio"]
        gaps = []
        payloads = [
            one(0, [1, 2], below=4), one(0, [1, 0], above=2), one(1, [3, 0], nans=1),
            one(4, [0, 5]), one(5, [0, 5]),
        ]  # fmt: skip

    shown = plot.histogram_grid("run", everything(), lambda run, **arguments: Table)
    assert shown.labels == ["NaN", "> 2", "1 to 2", "0 to 1", "< 0"]
    assert shown.steps.tolist() == [0, 1, 4, 5]  # nobody has the others, and nothing was lost
    assert shown.state[0].tolist() == [VALUE, NAN, VALUE, VALUE]
    assert shown.state[1].tolist() == [VALUE] * 4
    np.testing.assert_allclose(shown.values[1:, 0] * 10, [2, 2, 2, 4])
    np.testing.assert_allclose(shown.values[1:, 1] * 4, [0, 0, 3, 0])


def plot(*arguments, code=None):
    command = ["-m", "trainmon.plot"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)], capture_output=True, text=True
    )


def painted(file, colour):
    image = (matplotlib.image.imread(file)[..., :3] * 255).round().astype(int)
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(image - wanted).sum(-1) == 0).sum())


def test_files(run, tmp_path):
    from trainmon.drawing import COLOURS

    done = plot(run, "--what", "layers", "-o", tmp_path / "bad.png", "--size", "6x4")
    assert done.returncode == 0 and done.stdout == f"{tmp_path}/bad.png\n"
    assert matplotlib.image.imread(tmp_path / "bad.png").shape[:2] == (600, 900)
    assert painted(tmp_path / "bad.png", COLOURS[NAN]) > 300
    assert painted(tmp_path / "bad.png", COLOURS[INF]) > 300
    assert plot(run, "--what", "layers", "--rank", 0, "-o", tmp_path / "good.png").returncode == 0
    assert painted(tmp_path / "good.png", COLOURS[NAN]) == 0
    for what in ("series", "ranks"):
        assert plot(run, "--what", what, "-o", tmp_path / f"{what}.png").returncode == 0
        assert painted(tmp_path / f"{what}.png", COLOURS[NAN]) > 10
    done = plot(run, run, "--title", "$a_$", "-o", tmp_path / "c.svg")
    assert done.returncode == 0 and b"<svg" in (tmp_path / "c.svg").read_bytes()
    assert len(os.listdir(tmp_path)) == 5


def test_the_default_name(run, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "trainmon.plot", run, "--stat", "max"],
        cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )  # fmt: skip
    assert done.stdout == "run-series-max.png\n" and os.listdir(tmp_path) == ["run-series-max.png"]


def test_what_cannot_be_done(run, tmp_path):
    def refused(*arguments, code=None):
        done = plot(*arguments, "-o", tmp_path / "o.png", code=code)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert os.listdir(tmp_path) == []
        return done.stderr

    assert "grad_reduced" in refused(run, "--kind", "actv")
    assert "names a, b, c" in refused(run, "--name", "nothing")
    assert "norm" in refused(run, "--stat", "nrom")
    assert "update_ratio" in refused(run, "--what", "histogram")
    assert "two runs" in refused(run, "--what", "compare")
    assert "not 3" in refused(run, run, run)
    assert "one run" in refused(run, run, "--what", "layers")
    assert "inches" in refused(run, "--size", "0x3")
    without = (
        "import sys; sys.modules['matplotlib'] = None; import trainmon.plot as p; "
        "sys.exit(p.main(sys.argv[1:]))"
    )
    assert "pip install 'trainmon[plot]'" in refused(run, code=without)


def test_other_endings_are_refused(run, tmp_path):
    done = plot(run, "-o", tmp_path / "o.gif")
    assert done.returncode == 2 and ".png" in done.stderr and os.listdir(tmp_path) == []


def test_a_run_of_histograms_alone_shows_them(tmp_path):
    import torch

    import trainmon

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    mon = trainmon.watch(model, optimizer, kinds=["update_ratio"], every=1, out=tmp_path / "run")
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    mon.stop()
    path = [os.pathsep.join(map(os.path.abspath, sys.path))]
    env = {**os.environ, "PYTHONPATH": path[0]}
    plain = [sys.executable, "-m", "trainmon.plot", str(tmp_path / "run")]
    done = subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (0, "run-histogram.png\n"), done.stderr
    # Who asks for lines, or for what is not there, is told so.
    for more in (["--what", "series"], ["--name", "nothing"], ["--kind", "actv"]):
        done = subprocess.run(
            [*plain, *more], cwd=tmp_path, capture_output=True, text=True, env=env
        )
        assert done.returncode == 2 and "no row matches" in done.stderr


def test_the_first_kind_of_several(tmp_path, reader):
    """Gradients before weights before activations; moments only where nothing else is."""
    from trainmon import plot

    order = ["grad_reduced", "grad_unreduced", "param_updated", "param_origin", "actv", "exp_avg"]
    for count in range(2, len(order) + 1):
        kinds = order[-count:]
        out = tmp_path / str(count)
        rank = WrittenRank(out)
        for kind in reversed(kinds):
            rank.observe(np.ones(2, np.float32), kind, "w", 0)
        rank.end_step()
        rank.stop()
        assert plot.series_grid(str(out), everything(), "norm", reader).about == f"{kinds[0]} w"


# Machado, Oliveira and Fernandes 2009: linear RGB as seen without one of the cones.
WITHOUT = {
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "nothing": np.eye(3),
}  # fmt: skip


def seen(colour, missing):
    """The colour in CIE L*a*b* (D65), in which a distance of about 2.3 can just be seen."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]  # fmt: skip
    xyz = np.array(to_xyz) @ np.clip(np.array(WITHOUT[missing]) @ linear, 0, 1)
    f = np.array([part / white for part, white in zip(xyz, (0.95047, 1.0, 1.08883))])
    f = np.where(f > 0.008856, np.cbrt(f), 7.787 * f + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("missing", WITHOUT)
def test_colours_are_told_apart_without_a_cone(missing):
    from trainmon import drawing

    for colours in (drawing.LINES, list(drawing.COLOURS.values())):
        points = [seen(one, missing) for one in colours]
        for i, one in enumerate(points):
            for other in points[:i]:
                assert np.linalg.norm(one - other) > 15, (missing, colours)
    # Marks have shapes of their own, and a seventh line is dashed.
    assert len(set(drawing.SHAPES.values())) == len(drawing.SHAPES) == len(drawing.COLOURS)
    assert len(set(map(str, drawing.DASHES))) * len(drawing.LINES) >= 12


def test_a_folder_whose_name_is_no_text(tmp_path):
    run = tmp_path / "run"
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=run):
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    run = run.rename(tmp_path / os.fsdecode(b"bad\xff"))
    command = [sys.executable, "-m", "trainmon.plot", run, "-o", tmp_path / "a.png"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
