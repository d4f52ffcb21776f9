"""Runs that trainmon 0.1.0 wrote: today's readers say of them what its own readers said, and today's
sinks write the same of the same rows. tests/data/make_kept.py wrote runs and answers, with 0.1.0."""

from __future__ import annotations

import json
import sqlite3
import sys
import tarfile
from pathlib import Path

import pytest

import kept_rows
import log_decoder
from written_run import WrittenRank

DATA = Path(__file__).resolve().parents[2] / "data"
sys.path.insert(0, str(DATA))
import make_kept  # noqa: E402


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    place = tmp_path_factory.mktemp("kept")
    with tarfile.open(DATA / "kept_0.1.0.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.fixture(scope="module")
def answers(kept):
    return json.loads((kept / "answers.json").read_text())


def same(now, then) -> bool:
    """Equal, NaN too. What a dict has more than then is new."""
    if isinstance(then, dict):
        return then.keys() <= now.keys() and all(same(now[key], then[key]) for key in then)
    if isinstance(then, list):
        return len(now) == len(then) and all(map(same, now, then))
    return now == then or (now != now and then != then)


def test_differences_are_seen():
    assert same({"a": [1, float("nan")], "new": 0}, {"a": [1, float("nan")]})
    assert not same({"a": [1, 2]}, {"a": [1, 2], "b": 0})
    assert not same([1.0, 2.0], [1.0, 2.0000000000000004])
    assert not same([1], [1, 1])


@pytest.mark.parametrize("run", make_kept.PARTS)
def test_readers_say_what_they_said(run, kept, answers, tmp_path):
    now = json.loads(json.dumps(make_kept.answers_of(kept / run, tmp_path)))
    then = answers[run]
    assert now.keys() == then.keys()
    for name in then:
        assert same(now[name], then[name]), name


def test_the_runs_have_what_they_should(answers):
    one, ranks = answers["one"]["newest"], answers["ranks"]["newest"]
    assert {"skipped", "taken"} <= set(one["columns"]["fate"])
    assert sum(one["columns"]["nans"]) > 0
    assert one["alerts"] and one["payloads"]
    assert len({value for value in one["declared"]["value"] if value == value}) > 2
    assert ranks["ranks"] == [0, 1]
    restarts = answers["killed"]["all restarts"]["columns"]["restart"]
    assert set(restarts) == {0, 1}
    assert len(answers["killed"]["newest"]["columns"]["step"]) < len(restarts)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("now") / "same_rows"
    rank = WrittenRank(out, sinks=["log", "csv", "sqlite"])
    kept_rows.write(rank)
    return rank.directory


def then_of(kept: Path) -> Path:
    return kept / "same_rows" / "rank_00000" / "restart_0000"


def test_csv_has_the_same_bytes(kept, written):
    files = sorted(path.name for path in then_of(kept).glob("*.csv"))
    assert "rows-000000.csv" in files
    for name in files:
        assert (written / name).read_bytes() == (then_of(kept) / name).read_bytes(), name


def test_sqlite_has_the_same_rows(kept, written):
    def tables(path):
        with sqlite3.connect(path / "stats.db") as database:
            names = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
            return {
                name: [database.execute(f"SELECT * FROM {name}").fetchall(),
                       [row[1] for row in database.execute(f"PRAGMA table_info({name})")]]
                for (name,) in names
            }  # fmt: skip

    now, then = tables(written), tables(then_of(kept))
    assert "rows" in then
    for name in then:
        facts = [(rows, columns) for rows, columns in (now[name], then[name])]
        if name == "meta":  # which version wrote it
            facts = [([row for row in rows if row[0] != "trainmon"], cols) for rows, cols in facts]
        assert repr(facts[0]) == repr(facts[1]), name


def test_logs_have_the_same_batches(kept, written):
    """All but the times of sealing, and the checksums over them."""

    def decoded(path):
        (file,) = path.glob("*.tmlog")
        data = file.read_bytes()
        segment = log_decoder.decode(data)
        batches = [{k: v for k, v in one.items() if k != "time_ns"} for one in segment.batches]
        return len(data), (segment.start, segment.columns, segment.series, batches)

    (size, now), (size_then, then) = decoded(written), decoded(then_of(kept))
    assert len(then[-1]) == 9  # the last is sealed by stop()
    assert repr(now) == repr(then)
    assert abs(size - size_then) < 0.01 * size_then  # frames are compressed with their times


@pytest.mark.parametrize("name", ["run.json", "health.json"])
def test_small_files_have_all_keys_of_then(name, kept, written):
    now = json.loads((written / name).read_text())
    then = json.loads((then_of(kept) / name).read_text())
    assert then.keys() <= now.keys()
