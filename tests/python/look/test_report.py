"""`trainmon report`: the page says what `diagnose` says and holds what `query` gives."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import struct
import subprocess

import numpy as np
import pandas
import pytest

import launch
from written_run import WrittenRank

MARKUP = "<script>alert(1)</script>"
ODD = '</script><img src=x onerror=alert(2)>"&@DATA@'
VALUE, NAN, INF = 1, 2, 4
FAULTS = ("checked_weight_bit_30", "lost", "nan", "lr")


def command(*arguments, check=None):
    done = subprocess.run(
        [launch.command_line(), *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


class Page:
    def __init__(self, path):
        self.html = path.read_text(encoding="utf-8")
        scripts = re.findall(r"<script(.*?)>(.*?)</script>", self.html, re.S)
        (self.text,) = [text for head, text in scripts if 'id="report"' in head]
        self.report = json.loads(self.text)
        (data,) = [text for head, text in scripts if 'id="data"' in head]
        data = gzip.decompress(base64.b64decode(data, validate=True))
        (length,) = struct.unpack_from("<I", data)
        self.payload = json.loads(data[4 : 4 + length])
        self.columns = data[4 + length :]

    def table(self, kind, which="rows"):
        """One row a cell that is there: name, run, rank, first and last step, and each column."""
        table = self.payload[which]
        (one,) = [k for k in table["kinds"] if k["kind"] == kind]
        bins, lines, at = one["bins"], one["lines"], one["at"]
        count = len(bins) * len(lines)
        columns = {}
        for column in one["columns"]:
            size = {"marks": 1, "zeros": 1, "min": 2, "max": 2, "balance": 2}.get(column, 4)
            planes = np.frombuffer(self.columns, np.uint8, count * size, at).reshape(size, count)
            at += count * size
            values = np.ascontiguousarray(planes.T)
            if size == 2:  # the upper half of a float
                values = np.concatenate([np.zeros_like(values), values], axis=1)
            integers = {"marks": "u1", "zeros": "u1", "count": "<u4", "nans": "<u4", "infs": "<u4"}
            dtype = integers.get(column, "<f4")
            columns[column] = values.view(dtype).reshape(-1, len(bins))
        owners = [(line[0], line[1], i, line[4]) for i, line in enumerate(lines)]
        owners += [tuple(line) for line in one["same"]]
        out = []
        for tensor, rank, own, run in owners:
            for i, place in enumerate(bins):
                if columns["marks"][own, i] == 0:
                    continue
                first, last = table["bins"][place]
                cell = {name: values[own, i] for name, values in columns.items()}
                cell.setdefault("count", lines[own][5] if which == "rows" else 0)
                name, chunk, element, *_ = table["tensors"][tensor]
                place = {"run": run, "rank": rank, "step": first, "last": last}
                out.append({"name": name, **place, **cell})
        return pandas.DataFrame(out)


def report(run, to, *more, check=None):
    done = command("report", run, "-o", to, *more, check=check)
    return Page(to), done


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    launch.run("diagnose_run.py", out, *FAULTS, "checked_clean", ranks=2)
    return out


@pytest.mark.parametrize("name", [*FAULTS, "checked_clean"])
def test_the_first_screen_says_what_diagnose_says(runs, tmp_path, name):
    run = runs / name
    diagnosed = command("diagnose", run, "--json")
    said = command("diagnose", run)
    page, done = report(run, tmp_path / "a.html")
    assert done.returncode == diagnosed.returncode
    assert page.report["diagnosis"] == json.loads(diagnosed.stdout)
    at = page.report["verdict_at"]
    assert (at is None) == (diagnosed.returncode == 0)
    assert done.stdout.splitlines()[0] == said.stdout.splitlines()[0]
    if at is not None:
        words = page.report["words"][at]
        shown = [f"first wrong: {words['place']}", words["text"], words["bound"], words["check"]]
        lines = [line.strip() for line in said.stdout.splitlines()]
        assert [line for line in shown if line] == lines[: len([line for line in shown if line])]
        assert f"next: {page.report['commands']['verdict']}" in said.stderr
    assert page.report["rows"] == int(
        json.loads(
            command("query", run, "SELECT count(*) AS n FROM stats", "--json", check=0).stdout
        )[0]["n"]
    )


def test_a_changed_rate_is_told_where_it_changed(runs, tmp_path):
    """Its curve holds what `query` gives of the table declared."""
    page, _ = report(runs / "lr", tmp_path / "a.html")
    notices = [one for one in page.report["diagnosis"]["findings"] if one["check"] == "config"]
    assert notices and notices[0]["step"] == 15
    rates = page.table("declared", "curves")
    rates = rates[rates["name"] == "lr of group 0"]
    declared = command("query", runs / "lr", "--json",
        "SELECT step, rank, value FROM declared WHERE name = 'lr' ORDER BY rank, step").stdout  # fmt: skip
    expected = {
        (one["step"], one["rank"]): np.float32(one["value"]) for one in json.loads(declared)
    }
    assert {(r.step, r["rank"]): r.value for _, r in rates.iterrows()} == expected


@pytest.mark.parametrize("name", ["nan", "checked_clean"])
def test_every_cell_is_the_row_that_query_gives(runs, tmp_path, name):
    page, _ = report(runs / name, tmp_path / "a.html")
    sql = (
        "SELECT kind, name, rank, step, norm, min, max, nans FROM stats WHERE kind NOT LIKE 'actv%'"
    )
    rows = pandas.DataFrame(
        json.loads(command("query", runs / name, sql, "--json", check=0).stdout)
    )
    assert page.report["record"]["step_width"] == 1
    for kind, expected in rows.groupby("kind"):
        cells = page.table(kind).set_index(["name", "rank", "step"]).sort_index()
        expected = expected.set_index(["name", "rank", "step"]).sort_index()
        assert list(cells.index) == list(expected.index)
        wanted = {
            name: pandas.to_numeric(expected[name]).to_numpy(np.float64).astype(np.float32)
            for name in ("norm", "min", "max")
        }
        np.testing.assert_array_equal(cells["value"].to_numpy(np.float32), wanted["norm"])
        for name, sign in (("min", 1), ("max", -1)):  # bounds of about three digits
            stored = cells[name].to_numpy(np.float32)
            np.testing.assert_allclose(stored, wanted[name], rtol=2**-7)
            assert (sign * stored <= sign * wanted[name])[~np.isnan(stored)].all()
        bad = pandas.to_numeric(expected["nans"]).to_numpy() > 0
        assert list((cells["marks"] & NAN) > 0) == list(bad)


def test_a_small_page_keeps_every_extreme(tmp_path):
    """Sixty lines over 2,000 steps in one MiB: steps share columns, and no spike and no NaN is lost."""
    random = np.random.default_rng(5)
    rank = WrittenRank(tmp_path / "run")
    for step in range(2000):
        for i in range(60):
            array = random.standard_normal(6).astype(np.float32) * np.float32(
                10.0 ** random.normal()
            )
            if (step, i) == (431, 7):
                array[2] = np.nan
            if (step, i) == (512, 9):
                array[1] = np.inf
            rank.observe(array, "grad_reduced", f"layers.{i}.weight", step)
        rank.end_step()
    rank.stop()
    page, done = report(tmp_path / "run", tmp_path / "a.html", "--max-size", "1", "--json", check=1)
    answer = json.loads(done.stdout)
    assert answer["bytes"] == len(page.html.encode()) <= 1 << 20
    assert answer["step_width"] > 1 and answer["left_out_lines"] == 0
    cells = page.table("grad_reduced")
    for i in range(60):
        with np.errstate(all="ignore"):
            norms = np.array([np.sqrt(np.sum(a.astype(np.float64) ** 2))
                for (_, name, _), _, _, _, a in rank.seen if name == f"layers.{i}.weight"])  # fmt: skip
        ours = cells[cells["name"] == f"layers.{i}.weight"]
        finite = norms[np.isfinite(norms)].astype(np.float32)
        high = ours["high"].to_numpy()
        assert np.isclose(high[np.isfinite(high)].max(), finite.max(), rtol=1e-6), i
        assert np.isclose(np.nanmin(ours["low"]), finite.min(), rtol=1e-6), i
        for mark, step in ((NAN, 431 if i == 7 else None), (INF, 512 if i == 9 else None)):
            marked = ours[(ours["marks"] & mark) > 0]
            assert len(marked) == (step is not None)
            if step is not None:
                assert marked.iloc[0]["step"] <= step <= marked.iloc[0]["last"]


def test_what_is_left_out_is_counted(tmp_path):
    """So many lines that they do not fit: those that are least unusual go, the spike stays."""
    random = np.random.default_rng(6)
    rank = WrittenRank(tmp_path / "run")
    for step in range(60):
        for i in range(2500):
            scale = 1e6 if (step, i) == (50, 1234) else 1.0
            rank.observe(scale * random.random(4).astype(np.float32), "actv", f"m{i}", step)
        rank.end_step()
    rank.stop()
    page, done = report(tmp_path / "run", tmp_path / "a.html", "--max-size", "1", "--json", check=0)
    answer = json.loads(done.stdout)
    assert answer["left_out_lines"] > 0 and answer["bytes"] <= 1 << 20
    names = set(page.table("actv")["name"])
    assert len(names) + answer["left_out_lines"] == 2500 and "m1234" in names
    assert page.report["record"]["left_out_lines"] == answer["left_out_lines"]


def test_lines_are_ranked_by_their_own_history(tmp_path):
    """Large token numbers lead no list; a norm that rises tenfold does. Oracle: NumPy."""
    random = np.random.default_rng(8)
    rank = WrittenRank(tmp_path / "run")
    norms = {}
    for step in range(40):
        for i in range(12):
            value = (1.0 + 0.1 * random.random()) * (1e5 if i == 0 else 0.01)
            value *= 10.0 if (step, i) == (30, 3) else 1.0
            array = np.array([value, 0.0], np.float32)
            norms.setdefault(f"w{i}", []).append(float(array[0]))
            rank.observe(array, "grad_reduced", f"w{i}", step)
        rank.end_step()
    rank.stop()
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=0)
    (kind,) = page.payload["rows"]["kinds"]
    names = [one[0] for one in page.payload["rows"]["tensors"]]
    scores = {names[line[0]]: (line[2], kind["bins"][line[3]]) for line in kind["lines"]}
    for name, values in norms.items():
        logs = np.log10(values)
        expected = (0.0, 0)
        for at in range(8, len(logs)):
            before = logs[max(0, at - 16) : at]
            center = np.median(before)
            spread = max(1.4826 * np.median(np.abs(before - center)), 0.01)
            expected = max(expected, (abs(logs[at] - center) / spread, -at))
        assert scores[name][0] == pytest.approx(expected[0], rel=1e-3), name
        assert scores[name][1] == -expected[1], name
    assert max(scores, key=lambda name: scores[name][0]) == "w3" and scores["w3"][1] == 30


def test_names_never_become_markup(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(3):
        for name in (MARKUP, ODD):
            array = np.full(3, np.nan if step == 2 else 1.0, np.float32)
            rank.observe(array, "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=1)
    assert "<script>alert" not in page.html and "<img" not in page.html
    assert "<" not in page.text
    named = {name for one in page.report["diagnosis"]["findings"] for name in one["tensors"]}
    assert named == {MARKUP, ODD} == set(page.table("grad_reduced")["name"])
    ours = page.html.replace(page.text, "")
    assert not re.findall(
        r"src\s*=|href|url\(|innerHTML|insertAdjacentHTML|document\.write|https?:", ours
    )


def written(out, steps, value=1.0, **config):
    rank = WrittenRank(out, **config)
    for step in range(steps):
        rank.observe(np.full(3, value, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    rank.stop()
    return rank


def test_a_run_without_rows_has_a_page(tmp_path):
    written(tmp_path / "run", 0)
    page, done = report(tmp_path / "run", tmp_path / "a.html", check=3)
    assert page.report["rows"] == 0 and page.report["record"]["incomplete"]
    assert page.payload["rows"]["kinds"] == []


def test_a_run_of_one_step_has_a_page(tmp_path):
    written(tmp_path / "run", 1)
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=0)
    assert len(page.table("grad_reduced")) == 1


def test_a_run_without_finite_values_has_a_page(tmp_path):
    written(tmp_path / "run", 12, np.nan)
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=1)
    assert page.report["diagnosis"]["verdict"]["step"] == 0
    assert (page.table("grad_reduced")["marks"] & NAN).all()


def test_a_missing_rank_is_named(tmp_path):
    written(tmp_path / "run", 3, world_size=4)
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=3)
    assert page.report["record"]["missing"] == "ranks 1-3 of 4 are missing"


def test_a_damaged_log_is_named(tmp_path):
    rank = written(tmp_path / "run", 200)
    (log,) = rank.directory.glob("**/*.tmlog")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=3)
    assert page.report["record"]["damage"] and page.report["rows"] < 200


def test_bad_input_is_told(tmp_path):
    written(tmp_path / "run", 1)
    (tmp_path / "mine.html").write_text("my own page")
    done = command("report", tmp_path / "run", "-o", tmp_path / "mine.html", check=2)
    assert "mine.html is there and no report" in done.stderr
    assert (tmp_path / "mine.html").read_text() == "my own page"
    command("report", tmp_path / "run", "-o", tmp_path / "mine.html", "--overwrite", check=0)
    command("report", tmp_path / "run", "-o", tmp_path / "mine.html", check=0)  # it is a report now
    done = command("report", tmp_path / "run", "-o", tmp_path, check=2)
    assert "is a directory" in done.stderr
    done = command("report", tmp_path / "no_run", "-o", tmp_path / "a.html", check=2)
    assert "no_run" in done.stderr and not (tmp_path / "a.html").exists()
    command("report", tmp_path / "run", "--max-size", "0", check=2)


def rows_of(run, kind, name, rank):
    sql = f"SELECT step, norm FROM stats WHERE kind = '{kind}' AND name = '{name}' AND rank = {rank} ORDER BY step"
    answer = json.loads(command("query", run, sql, "--json", check=0).stdout)
    return [(one["step"], np.float32(one["norm"])) for one in answer]


def test_the_norm_of_the_verdict_is_told_before_at_and_after_its_step(runs, tmp_path):
    run = runs / "checked_weight_bit_30"
    page, _ = report(run, tmp_path / "a.html")
    (line,) = page.report["evidence"]["lines"]
    assert (page.report["evidence"]["kind"], line["rank"]) == ("param_origin", 1)
    rows = rows_of(run, "param_origin", "2.weight", 1)
    told = [
        (line[when]["step"], np.float32(line[when]["norm"])) for when in ("before", "at", "last")
    ]
    assert told == [rows[14], rows[15], rows[-1]]
    assert report(runs / "checked_clean", tmp_path / "b.html")[0].report["evidence"] is None


def test_a_rank_that_recorded_less_is_named(tmp_path):
    """Rank 1 has fewer steps of one kind, rank 2 fewer rows of another, rank 3 other tensors."""
    for number in range(4):
        rank = WrittenRank(tmp_path / "run", number, 4)
        for step in range(10):
            if number != 1 or step < 6:
                rank.observe(np.ones(3, np.float32), "param_origin", "w", step)
            for name in ("a", "b") if number != 3 else ("c",):
                if (number, step, name) != (2, 4, "b"):
                    rank.observe(np.ones(3, np.float32), "grad_reduced", name, step)
            rank.monitor.add_scalar("loss", 1.0)
            rank.end_step()
        rank.monitor.add_scalar("loss", 1.0)
        rank.end_step()
        rank.stop()
    page, _ = report(tmp_path / "run", tmp_path / "a.html")
    fewer = {one["kind"]: one["fewer"] for one in page.report["record"]["kinds"]}
    assert fewer["param_origin"] == [{"ranks": [1], "steps": 6, "rows": 0, "of_rows": 0}]
    assert fewer["grad_reduced"] == [{"ranks": [2], "steps": 10, "rows": 19, "of_rows": 20}]
    assert page.report["record"]["steps"] == [0, 10]
    # Of ranks that were not asked for nothing is said.
    page, _ = report(tmp_path / "run", tmp_path / "b.html", "--rank", "0", "--rank", "3")
    assert all(one["fewer"] == [] for one in page.report["record"]["kinds"])


def test_an_empty_selection_is_told_and_replaces_no_report(runs, tmp_path):
    run, to = runs / "checked_clean", tmp_path / "a.html"
    top = command("top", run, "--name", "zzz")
    page, done = report(run, to, "--name", "zzz", check=top.returncode)
    sentence = top.stderr.splitlines()[0]
    assert sentence in done.stderr.splitlines() and "wrong" not in done.stdout
    assert page.report["rows"] == 0 and page.report["is_selection"]
    _, done = report(run, to, check=0)
    before = to.read_bytes()
    _, done = report(run, to, "--name", "zzz", check=top.returncode)
    assert to.read_bytes() == before
    assert "a.html stays as it was" in done.stderr and "written" not in done.stderr
    _, done = report(run, to, "--name", "zzz", "--json", check=top.returncode)
    assert json.loads(done.stdout)["output"] is None
    report(run, to, "--name", "zzz", "--overwrite", check=top.returncode)
    assert to.read_bytes() != before


def test_commands_keep_the_selection(runs, tmp_path):
    run = runs / "checked_clean"
    chosen = ["--kind", "grads", "--name", "2.*", "--exclude", "*bias", "--rank", "1", "--steps", "3:7"]  # fmt: skip
    page, _ = report(run, tmp_path / "a.html", *chosen, check=0)
    words = "--kind grads --name '2.*' --exclude '*bias' --rank 1 --steps 3:7"
    for name in ("diagnose", "show"):
        assert page.report["commands"][name] == f"trainmon {name} {run} {words}"
    assert page.report["commands"]["verdict"] == page.report["commands"]["show"]
    shown = command("show", run, *chosen, "--json", "--count", "0", check=0)
    assert len(json.loads(shown.stdout)) == page.report["rows"] > 0
    sql = f"SELECT rank, step FROM stats WHERE kind = 'grad_reduced'{page.report['commands']['where']}"
    rows = json.loads(command("query", run, sql, "--json", check=0).stdout)
    assert {(one["rank"], one["step"]) for one in rows} == {(1, step) for step in range(3, 8)}
    fault = runs / "checked_weight_bit_30"
    page, _ = report(
        fault, tmp_path / "b.html", "--kind", "param_origin", "--kind", "param_updated", check=1
    )
    assert page.report["commands"]["verdict"].endswith(" --kind param_origin --kind param_updated")


def test_files_of_others_stay(tmp_path):
    written(tmp_path / "run", 1)
    (tmp_path / "a.html.tmp").write_text("mine")
    command("report", tmp_path / "run", "-o", tmp_path / "a.html", check=0)
    assert (tmp_path / "a.html.tmp").read_text() == "mine"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.html", "a.html.tmp", "run"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_mode_of_the_page_follows_the_umask(tmp_path, mask):
    written(tmp_path / "run", 1)
    to = tmp_path / "a.html"
    arguments = [launch.command_line(), "report", tmp_path / "run", "-o", to]
    subprocess.run(arguments, umask=mask, check=True, capture_output=True, timeout=60)
    assert to.stat().st_mode & 0o777 == 0o666 & ~mask


def test_what_is_no_file_is_refused_at_once(tmp_path):
    written(tmp_path / "run", 1)
    os.mkfifo(tmp_path / "pipe")
    for to in (tmp_path / "pipe", "/dev/null"):
        for more in ([], ["--overwrite"]):
            # The run is not there: the name was looked at before the run was.
            done = command("report", tmp_path / "no_run", "-o", to, *more, check=2)
            assert f"{to} is a pipe or a device" in done.stderr
    assert (tmp_path / "pipe").is_fifo()
    done = command("report", tmp_path / "run", "-o", "", check=2)
    assert "an empty name is no file to write" in done.stderr
    done = command("report", tmp_path / "no_run", "-o", tmp_path / "x" / "y.html", check=2)
    assert f"{tmp_path / 'x'} is no directory" in done.stderr


def test_equal_curves_of_many_ranks_are_kept_once(tmp_path):
    for number in range(4):
        rank = WrittenRank(tmp_path / "run", number, 4)
        for step in range(5):
            rank.monitor.add_scalar("loss", 0.5 * step)
            rank.end_step()
        rank.stop()
    page, _ = report(tmp_path / "run", tmp_path / "a.html")
    (kind,) = [one for one in page.payload["curves"]["kinds"] if one["kind"] == "logged"]
    assert len(kind["lines"]) == 1 and len(kind["same"]) == 3
    losses = page.table("logged", "curves")
    assert sorted(zip(losses["rank"], losses["step"], losses["value"])) == [
        (number, step, 0.5 * step) for number in range(4) for step in range(5)
    ]


def test_two_runs_hold_what_compare_and_diagnose_say(runs, tmp_path):
    a, b = runs / "checked_clean", runs / "checked_weight_bit_30"
    compared = command("compare", a, b, "--json", check=1)
    page, done = report(a, tmp_path / "a.html", b, check=1)
    expected = json.loads(compared.stdout)
    expected.pop("levels")
    assert page.report["comparison"]["found"] == expected
    first = command("compare", a, b).stdout.splitlines()[0]
    assert done.stdout.splitlines()[0] == first
    place = page.report["comparison"]["words"]["place"]
    assert first == f"first difference: {place}"
    for run, said in ((a, page.report), (b, page.report["other"])):
        assert said["diagnosis"] == json.loads(command("diagnose", run, "--json").stdout)
        assert said["commands"]["diagnose"] == f"trainmon diagnose {run}"
    assert page.report["comparison"]["command"] == f"trainmon compare {a} {b}"


def test_each_run_of_two_has_its_own_cells(runs, tmp_path):
    pair = [runs / "checked_clean", runs / "checked_weight_bit_30"]
    page, _ = report(pair[0], tmp_path / "a.html", pair[1], check=1)
    cells = page.table("param_origin")
    for number, run in enumerate(pair):
        ours = cells[cells["run"] == number]
        for rank in (0, 1):
            line = ours[(ours["name"] == "2.weight") & (ours["rank"] == rank)]
            assert list(zip(line["step"], line["value"])) == rows_of(
                run, "param_origin", "2.weight", rank
            )
    # What both runs hold is kept once: the replicas of A, and B up to its fault.
    (kind,) = [one for one in page.payload["rows"]["kinds"] if one["kind"] == "param_origin"]
    assert len(kind["lines"]) + len(kind["same"]) == 4 * cells["name"].nunique()


def test_two_runs_stay_within_their_size(tmp_path):
    random = np.random.default_rng(11)
    for name in "ab":
        rank = WrittenRank(tmp_path / name)
        for step in range(1000):
            for i in range(70):
                array = random.standard_normal(4).astype(np.float32)
                if (name, step, i) == ("b", 700, 5):
                    array *= np.float32(1e9)
                rank.observe(array, "actv", f"m{i}", step)
            rank.end_step()
        rank.stop()
    page, done = report(
        tmp_path / "a", tmp_path / "a.html", tmp_path / "b", "--max-size", "1", "--json", check=1
    )
    answer = json.loads(done.stdout)
    assert answer["bytes"] <= 1 << 20 and answer["step_width"] > 1 and answer["rows"] == 140_000
    assert answer["comparison"]["first"]["step"] == 0
    cells = page.table("actv")
    spike = cells[(cells["run"] == 1) & (cells["name"] == "m5")]
    assert spike["high"].max() > 1e8 and cells[cells["run"] == 0]["high"].max() < 100


def test_what_cannot_be_compared_is_told(tmp_path):
    written(tmp_path / "a", 3)
    rank = WrittenRank(tmp_path / "b")
    rank.observe(np.ones(3, np.float32), "actv", "other", 0)
    rank.end_step()
    rank.stop()
    page, done = report(tmp_path / "a", tmp_path / "a.html", tmp_path / "b", check=3)
    assert "no row in common" in page.report["comparison"]["not_compared"]
    assert "found" not in page.report["comparison"]
    assert done.stdout.startswith("not compared: the runs have no row in common")
    done = command("report", tmp_path / "a", tmp_path / "none", "-o", tmp_path / "b.html", check=2)
    assert "none" in done.stderr and not (tmp_path / "b.html").exists()


def test_mean_deviation_and_zeros_come_out_of_the_columns(tmp_path):
    """Means far from zero, far below their deviation, constants, ReLUs, other sizes. Oracle: NumPy."""
    random = np.random.default_rng(12)
    makers = {
        "weight": lambda step: random.standard_normal(500),
        "norm": lambda step: 1 + 1e-4 * random.standard_normal(64),
        "constant": lambda step: np.full(7, -0.25),
        "nothing": lambda step: np.zeros(5),
        "relu": lambda step: np.maximum(random.standard_normal(1000) - 2, 0),
        "tiny": lambda step: 1e-30 * random.standard_normal(50),
        "batch": lambda step: random.standard_normal(10 + step),
        "infinite": lambda step: np.array([1.0, np.inf if step == 3 else 2.0]),
    }
    rank = WrittenRank(tmp_path / "run")
    expected = {}
    for step in range(6):
        for name, make in makers.items():
            array = make(step).astype(np.float32)
            expected[name, step] = array.astype(np.float64)
            rank.observe(array, "actv", name, step)
        rank.end_step()
    rank.stop()
    page, _ = report(tmp_path / "run", tmp_path / "a.html")
    cells = page.table("actv")
    assert len(cells) == len(expected)
    for cell in cells.itertuples():
        array = expected[cell.name, cell.step]
        assert cell.count == array.size
        share = np.mean(np.abs(array) < 1e-8)
        assert abs(cell.zeros / 255 - share) < 0.5 / 255 + 1e-9 or share * 255 < 1
        assert (cell.zeros == 0) == (share == 0) and (cell.zeros == 255) == (share == 1)
        if not np.isfinite(array).all():
            assert np.isnan(cell.balance)
            continue
        size = np.float64(cell.value) / np.sqrt(cell.count)
        if np.isinf(cell.balance):
            mean, deviation = np.sign(cell.balance) * size, 0.0
        else:
            deviation = size / np.sqrt(1 + np.float64(cell.balance) ** 2)
            mean = cell.balance * deviation
        scale = np.sqrt(np.mean(array**2))
        np.testing.assert_allclose(mean, array.mean(), rtol=2**-8, atol=1e-7 * scale)
        np.testing.assert_allclose(deviation, array.std(), rtol=2**-7, atol=1e-6 * scale)


def test_many_histograms_share_columns_and_keep_every_element(tmp_path):
    """Sums over steps hold a spike of one step; the page stays within its size."""
    random = np.random.default_rng(13)
    rank = WrittenRank(tmp_path / "run")
    series = [
        [rank.monitor.add_series("update_ratio", f"w{i}", element=one, dtype="float32") for one in ("update", "ratio")]
        for i in range(20)
    ]  # fmt: skip
    for step in range(600):
        for i, pair in enumerate(series):
            first = np.zeros(50, np.float32)
            if (step, i) == (431, 7):
                first[3] = 5.0
            second = 1 + random.random(50).astype(np.float32)
            rank.monitor.add_adam_histograms(*pair, first, second, 1e6, 0.9, 0.999, 1e-8)
        rank.end_step()
    rank.stop()
    page, done = report(tmp_path / "run", tmp_path / "a.html", "--max-size", "1", "--json")
    assert json.loads(done.stdout)["bytes"] <= 1 << 20
    found = page.payload["histograms"]
    steps, width = found["steps"], found["bins"] + 3
    assert steps[0][0] == 0 and steps[-1][1] == 599 and 32 <= len(steps) < 600
    assert len(found["lines"]) == 40 and found["left_out"] == 0
    count = len(found["lines"]) * len(steps) * width
    cells = np.frombuffer(page.columns, np.uint8, count, found["at"])
    cells = cells.reshape(len(found["lines"]), len(steps), width)
    above = {(line[1], line[3]): cells[i, :, 1] for i, line in enumerate(found["lines"])}
    for key, column in above.items():
        marked = np.flatnonzero(column)
        if key == ("w7", "update"):
            assert len(marked) == 1 and steps[marked[0]][0] <= 431 <= steps[marked[0]][1]
        elif key != ("w7", "ratio"):
            assert len(marked) == 0
