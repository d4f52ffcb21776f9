# Nothing that only says something raises or waits: standard error closed, full, broken, not read.
import fcntl
import json
import os
import pathlib
import subprocess
import sys

import pytest

import launch
import trainmon

HERE = pathlib.Path(__file__).parents[1]


def full_pipe():
    """Both ends of a pipe that takes no byte more; writing to it waits for a reader."""
    reading, writing = os.pipe()
    flags = fcntl.fcntl(writing, fcntl.F_GETFL)
    fcntl.fcntl(writing, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    for size in (65536, 1):
        try:
            while True:
                os.write(writing, b"x" * size)
        except BlockingIOError:
            pass
    fcntl.fcntl(writing, fcntl.F_SETFL, flags)
    return reading, writing


def run(out, logging, errors):
    """The program with this descriptor as standard error; None: closed."""
    if errors is None:
        program = [sys.executable, str(HERE / "programs/console_run.py"), logging, str(out)]
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *program], stdout=subprocess.PIPE, text=True
        )
    else:
        process = launch.start("console_run.py", logging, out, stderr=errors)
    ended = launch.finish(process, 120)
    health = json.loads((out / "ended.json").read_text())
    assert ended.code == 0
    table = trainmon.read_table(str(out / "run"))
    assert set(table["step"].tolist()) == set(range(20))
    assert health["rows_produced"] == health["sinks"][0]["rows_written"] == len(table["step"])
    assert health["parts_off"] == {} and health["alerts"] > 0
    return ended.out


@pytest.mark.parametrize("logging", ["none", "basic", "raising"])
class TestStandardError:
    def test_closed(self, tmp_path, logging):
        assert run(tmp_path, logging, None) == ""

    def test_on_a_full_disk(self, tmp_path, logging):
        with open("/dev/full", "wb") as full:
            run(tmp_path, logging, full)

    def test_that_nobody_holds_any_more(self, tmp_path, logging):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            run(tmp_path, logging, writing)
        finally:
            os.close(writing)

    def test_that_is_full_and_nobody_reads(self, tmp_path, logging):
        reading, writing = full_pipe()
        try:
            run(tmp_path, logging, writing)
            assert not fcntl.fcntl(writing, fcntl.F_GETFL) & os.O_NONBLOCK
        finally:
            os.close(reading)
            os.close(writing)

    def test_that_is_read_has_every_line(self, tmp_path, logging):
        with open(tmp_path / "errors", "wb+") as errors:
            run(tmp_path, logging, errors)
            errors.seek(0)
            text = errors.read().decode()
        assert "trainmon: watching grad" in text and "rows written, 0 dropped" in text
        assert "first non-finite value" in text
        assert ("log(loss=...) takes a number" in text) == (logging != "raising")


def test_a_stream_of_the_users_gets_what_is_said(tmp_path, monkeypatch):
    import io

    from trainmon.base.console import say

    class Broken(io.StringIO):
        def write(self, text):
            raise RuntimeError("no")

    kept = io.StringIO()
    monkeypatch.setattr(sys, "stderr", kept)
    say("one line")
    monkeypatch.setattr(sys, "stderr", Broken())
    say("lost")
    monkeypatch.setattr(sys, "stderr", None)
    say("lost, too")
    assert kept.getvalue() == "one line\n"
