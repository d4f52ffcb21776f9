# What the benchmarks share: a command that times itself, and lines for `make bench`.
import json
import pathlib
import subprocess
import sys


def seconds(command: list[str]) -> float:
    """The number behind the last line `seconds N` that it prints; ends the benchmark without one."""
    done = subprocess.run(command, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not found:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return float(found[-1].split()[1])


def line(
    name: str,
    figure: float,
    unit: str,
    yardstick: str,
    yardstick_figure: float,
    ratio: float | None = None,
    lower_is_better: bool = True,
    **more: float,
) -> dict:
    """A figure with its yardstick of the same run, in the same unit. `ratio` is theirs, figure over
    yardstick, unless given (the median of the rounds' ratios, say); `more`: bounds of an interval.
    """
    return {
        "name": name,
        "figure": figure,
        "unit": unit,
        "yardstick": yardstick,
        "yardstick_figure": yardstick_figure,
        "ratio": figure / yardstick_figure if ratio is None else ratio,
        "lower_is_better": lower_is_better,
        **more,
    }


def write_lines(path: pathlib.Path | None, lines: list[dict]) -> None:
    """For `--json FILE`; nothing without one."""
    if path is not None:
        path.write_text(json.dumps(lines, indent=1) + "\n")
