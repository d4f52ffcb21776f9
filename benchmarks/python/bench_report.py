"""The page of `trainmon report` over a million rows: its size, what making it takes, and how fast it
draws in Chromium without a window.

    python benchmarks/python/bench_report.py build/release/benchmarks/cpp/write_run [--tensors 400]
        [--steps 2500] [--json FILE]

Seconds of the command are those of the processor, the least of five. Chromium's times are of a clock,
so other work on the machine adds to them: the median and the slowest of 40 zooms. What the processor
spent on one is shown, too, of all processes of the browser.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import timed
from bench_reading import process

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/browser"))
from browser import Browser

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
# The whole run and a quarter of it in turn, each drawn at once.
WARM_UP = 2
ZOOMS = f"""(() => {{
  const taken = [], all = data.axis.length;
  for (let i = 0; i < {40 + WARM_UP}; ++i) {{
    const length = i % 2 === 0 ? all / 4 : all;
    const begin = performance.now();
    Object.assign(view, {{ from: (i % 4) / 4 * (all - length), to: (i % 4) / 4 * (all - length) + length }});
    paintNow();
    taken.push(performance.now() - begin);
  }}
  return taken.slice({WARM_UP});
}})()"""


def family(pid: int) -> dict[int, list[str]]:
    """A process and all that it has started: fields of /proc/PID/stat behind the name."""
    found: dict[int, list[str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
    ours = {pid}
    while more := {one for one, fields in found.items() if int(fields[1]) in ours} - ours:
        ours |= more
    return {one: found[one] for one in ours if one in found}


def processor_ms(pid: int) -> float:
    """Of a process and all that it has started, milliseconds of the processor so far."""
    ticks = sum(int(fields[11]) + int(fields[12]) for fields in family(pid).values())
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


def page_mb(pid: int) -> float:
    """Of the process that draws the page: its own memory, and its share of what it has in common."""
    found = 0.0
    for one in family(pid):
        place = Path(f"/proc/{one}")
        try:
            if b"--type=renderer" not in (place / "cmdline").read_bytes():
                continue
            pss = re.search(r"^Pss:\s+(\d+) kB", (place / "smaps_rollup").read_text(), re.M)
        except OSError:
            continue
        found = max(found, int(pss[1]) / 1e3 if pss else 0.0)
    return found


def drawn(path: Path) -> tuple[float, float, list[float], float, float]:
    """Milliseconds to the first paint, until the pictures are there, of zooms, and of the processor for
    one zoom, over all processes of the browser; MB of the page after them."""
    browser = Browser()
    try:
        page = browser.open(path)
        ready = page.evaluate("performance.now()")
        page.evaluate("paintNow()")
        before = processor_ms(browser.process.pid)
        zooms = page.evaluate(ZOOMS)
        taken = (processor_ms(browser.process.pid) - before) / (len(zooms) + WARM_UP)
        memory = page_mb(browser.process.pid)
        return page.evaluate(FIRST_PAINT), ready, zooms, taken, memory
    finally:
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("write_run")
    parser.add_argument("--tensors", type=int, default=400)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines: list[dict] = []

    def show(name: str, figure: float, unit: str, bound: float) -> None:
        lines.append(timed.line(name, figure, unit, "at most", bound))
        print(f"{name:<44} {figure:9.3f} {unit}; at most {bound:g}", flush=True)

    command = str(Path(sys.executable).parent / "trainmon")
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / name for name in "ab"]
        for i, run in enumerate(runs):
            # One tensor more draws other values for all of them.
            size = [str(options.tensors + i), str(options.steps)]
            subprocess.run([options.write_run, run, *size], check=True, stdout=subprocess.DEVNULL)
        for name, given in (("one run", runs[:1]), ("two runs", runs)):
            page = Path(folder) / f"{name}.html"
            words = [command, "report", *map(str, given), "-o", str(page)]
            seconds, peak = process(words, (0, 1))
            show(
                f"{name}: size of the page",
                page.stat().st_size / 1e6,
                "MB",
                10.0 if len(given) == 1 else 16.8,
            )
            show(f"{name}: making the page", seconds, "s", 3.0 * len(given))
            show(f"{name}: memory of making it", peak, "MB", 256.0)
            paint, ready, zooms, taken, memory = drawn(page)
            show(f"{name}: first paint", paint, "ms", 1000.0)
            show(f"{name}: all pictures", ready, "ms", 5000.0)
            show(f"{name}: memory of the page", memory, "MB", 300.0)
            show(f"{name}: zoom, of the processor", taken, "ms", 100.0)
            show(f"{name}: zoom, median", statistics.median(zooms), "ms", 100.0)
            show(f"{name}: zoom, slowest of {len(zooms)}", max(zooms), "ms", 100.0)
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
