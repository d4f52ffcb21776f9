"""The table of the bars (benchmarks/python): each bar finds its line, says whether it is met, and
only what stands between the markers of the document is written anew."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "python"))
import bars
import bench
import timed

BENCHMARKS = Path(bench.__file__).parent

ABOUT = {"command": "python x.py", "date": "2026-01-02T03:04:05", "commit": "abc", "load": 0.1}


def line(program, name, figure, yardstick, **more):
    made = timed.line(name, figure, "ms", "a yardstick", yardstick, **more)
    return {**made, **ABOUT, "program": program, "machine": "a machine"}


def bar(number, word):
    return next(b for b in bars.BARS if b.id == number and word in b.what)


def test_a_bar_of_speed_reads_how_many_times_better_the_line_is():
    csv = bar("P11", "beside the peer's writer")
    quick = line("sinks", "12,000 scalars: csv", 2.0, 84.0)
    slow = line("sinks", "12,000 scalars: csv", 2.0, 79.0)
    assert csv.value(quick) == 42.0 and csv.met(quick)
    assert csv.value(slow) == 39.5 and not csv.met(slow)
    assert csv.line([line("peer", "12,000 scalars: csv", 1, 1), quick]) == quick


def test_a_bar_of_a_step_reads_the_upper_end_of_the_interval():
    step = bar("step", "gradients and moments")
    assert step.met(line("overhead", "overhead: gradients, moments", 0.1, 330, upper=2.0))
    assert not step.met(line("overhead", "overhead: gradients, moments", 0.1, 330, upper=2.1))
    assert not step.met(
        line("overhead", "overhead: gradients, moments", 0, 330, upper=float("nan"))
    )


def test_a_bar_that_fits_two_lines_is_an_error_and_one_that_fits_none_is_not_measured():
    gradients = bar("P8", "more than bare")
    alone = line("overhead", "overhead: gradients", 0.5, 330)
    assert (
        gradients.line([alone, line("overhead", "overhead: gradients, moments", 1, 330)]) == alone
    )
    with pytest.raises(ValueError, match="P8"):
        gradients.line([alone, alone])
    rows = bench.table([alone]).splitlines()
    assert [row for row in rows if "| yes |" in row] == [
        "| P8 | a step with gradients watched, more than bare | at most 1 % | 0.5 % |"
        " a yardstick: 330 | yes | `python x.py` |"
    ]
    assert sum("not measured" in row for row in rows) == len(bars.BARS) - 1
    verdicts = [one["met"] for one in bench.judged([alone])]
    assert verdicts.count(True) == 1 and verdicts.count(None) == len(bars.BARS) - 1


def test_only_what_stands_between_the_markers_is_written(tmp_path, monkeypatch):
    document = tmp_path / "document.md"
    monkeypatch.setattr(bench, "DOCUMENT", document)
    document.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n")
    for _ in range(2):
        bench.write_table([])
        text = document.read_text()
        assert text.startswith(f"before\n{bench.BEGIN}\n| bar |")
        assert text.endswith(f"|\n{bench.END}\nafter\n") and "old" not in text
    document.write_text("no markers")
    with pytest.raises(SystemExit, match="markers"):
        bench.write_table([])


def test_rows_of_programs_without_lines_stay(tmp_path, monkeypatch):
    document = tmp_path / "document.md"
    monkeypatch.setattr(bench, "DOCUMENT", document)
    document.write_text(f"{bench.BEGIN}\n{bench.END}\n")
    bench.write_table([line("overhead", "overhead: gradients", 0.5, 330)])
    bench.write_table([line("sinks", "12,000 scalars: csv", 2.0, 84.0)])
    text = document.read_text()
    assert text.count("| 0.5 % | a yardstick: 330 | yes |") == 1
    assert text.count("| 42 times | a yardstick: 84 | yes |") == 1
    assert text.count("\n- overhead: ") == text.count("\n- sinks: ") == 1
    # A program that was measured again and has no such line any more.
    bench.write_table([line("overhead", "overhead: other", 0.5, 330)])
    assert "| 0.5 % |" not in document.read_text()
    assert document.read_text().count("\n- overhead: ") == 0


def test_reading_has_one_line_for_each_bar():
    names = ("first-bad", "top", "count by kind", "grouped query", "doctor")
    forms = ("", ", compacted")
    shown = [f"{name}{of}, beside DuckDB" for name in names for of in forms]
    shown += [f"compare of two runs{of}" for of in forms]
    shown += ["export to Parquet", "read of one statistic of a kind"]
    shown += ["scan of one statistic of a kind"]
    decoding = ("decode of all columns", "decode by two threads")
    shown += [f"{what}{of}" for what in decoding for of in forms]
    shown += [f"memory of {name}" for name in ("export", "compare, compacted", "scan")]
    lines = [line("reading", name, float(i + 1), 1.0) for i, name in enumerate(shown)]
    found = [b.line(lines) for b in bars.BARS if b.program == "reading"]
    assert None not in found
    assert len({one["name"] for one in found}) == len(found)


def test_lines_of_programs_that_did_not_run_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(bench, "DOCUMENT", tmp_path / "document.md")
    bench.DOCUMENT.write_text(f"{bench.BEGIN}\n{bench.END}\n")
    programs = tmp_path / "a place"  # checkouts have such names, too
    programs.mkdir()
    (programs / "program.py").write_text(
        "import sys, pathlib\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "import timed\n"
        "file = pathlib.Path(sys.argv[sys.argv.index('--json') + 1])\n"
        "timed.write_lines(file, [timed.line('overhead: gradients', 0.5, '%', 'bare', 330.0)])\n"
    )
    (programs / "failing.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(bench, "HERE", programs)
    monkeypatch.setattr(
        bench,
        "PROGRAMS",
        {"overhead": ("{python}/program.py", ""), "peer": ("{python}/failing.py", "")},
    )
    bench.RESULTS.write_text(
        json.dumps({"lines": [line("sinks", "x", 1, 2), line("overhead", "old", 1, 2)]})
    )
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    assert bench.main() == 1  # the second program fails
    kept = json.loads(bench.RESULTS.read_text())
    assert [one["name"] for one in kept["lines"]] == ["x", "overhead: gradients"]
    assert sum(one["met"] is True for one in kept["bars"]) == 1
    assert "| yes |" in bench.DOCUMENT.read_text()


def test_the_counter_of_instructions_names_the_paths_when_asked_for_another(tmp_path):
    program = tmp_path / "hot_paths"
    program.write_text("#!/bin/sh\necho observe\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "count_instructions.py", program, "--only", "nothing"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "observe" in done.stderr
