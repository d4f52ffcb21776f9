# Runs the benchmarks, keeps what they found in one JSON file, and shows it beside the bars.
"""bench.py [--only NAME ...] [--quick] [--programs DIR]

Each program writes lines, a figure with its yardstick of the same run (timed.py, lines.h); they go,
with the commit, date and load they were measured at, into build/bench/results.json, where lines of
programs that did not run now stay, as do rows of the table that a fresh clone has no lines for. The table of bars between two markers in docs/measurements.md is
written anew from that file. --quick shortens everything to try the programs: it writes neither.
--table only writes the table. A bar that is missed is shown, not a failure; a program that fails is.
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

from bars import BARS

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
RESULTS = ROOT / "build/bench/results.json"
DOCUMENT = ROOT / "docs/measurements.md"
BEGIN = "<!-- bars: written by make bench from here -->"
END = "<!-- bars: to here -->"

# Environments of the peer, made when a program needs one.
PEERS = {
    "peer": ("peer", "scripts/peer_requirements.txt"),
    "peer833": ("peer833", "scripts/peer833_requirements.txt", "--no-deps"),
}

# name -> what is run, what makes it short. {bin}: programs of benchmarks/cpp; {peer}, {peer833}:
# interpreters with mindstudio-probe 26.2.0 and 8.3.3.
PROGRAMS = {
    "stats": ("{bin}/stats_bench", "--mib 8 --rounds 3"),
    "accuracy": ("{bin}/accuracy_bench", "--elements 100000"),
    "probe": ("{bin}/probe_bench", "--mib 8 --rounds 3"),
    "checks": ("{bin}/checks_bench", "--mib 8 --rounds 3"),
    "recorder": ("{bin}/recorder_bench", "--rounds 20"),
    "device": ("{bin}/device_bench", "--rounds 20"),
    "peer_stats": ("{python}/bench_stats.py --peer-python {peer}", "--rounds 1"),
    "overhead": ("{python}/bench_overhead.py", "--pairs 2 --only gradients"),
    "hooks": ("{python}/bench_hooks.py", "--rounds 5"),
    "estimate": ("{python}/bench_estimate.py", "--pairs 2 --only gradients"),
    "governor": ("{python}/bench_governor.py", "--steps 80 --budget 2%"),
    "memory": ("{python}/bench_memory.py", "--steps 2 --repeats 1"),
    "peer": ("{python}/bench_peer.py --peer-python {peer}", "--pairs 2 --only gradients"),
    "wrappers": ("{python}/bench_wrappers.py", "--pairs 2 --only DDP"),
    "sinks": ("{python}/bench_sinks.py {bin}/sinks_bench --peer-python {peer}", "--rounds 1"),
    "parquet": ("{python}/bench_parquet.py", "--steps 20"),
    "reading": ("{python}/bench_reading.py {bin}/decode_bench", "--steps 100"),
    "scale": (
        "{python}/bench_scale.py {bin}/write_large_run",
        "--share 0.001 --only 64",
    ),
    "report": ("{python}/bench_report.py {bin}/write_run", "--tensors 20 --steps 50"),
    "serve": (
        "{python}/bench_serve.py",
        "--pairs 2 --block 2 --seconds 10 --tensors 20 --steps 50",
    ),
    "tensorboard": ("{python}/bench_tensorboard.py {bin}/tensorboard_bench", "--rounds 1"),
    "convert": (
        "{python}/bench_convert.py --peer-python {peer833}",
        "--files 2 --rows 200 --rounds 1",
    ),
    "grad_probe": ("{python}/bench_grad_probe.py --peer-python {peer833}", "--small --steps 1"),
    "directions": (
        "{python}/bench_directions.py --peer-python {peer833}",
        "--steps 1 --rounds 1",
    ),
}


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit():
    found = output("git", "rev-parse", "--short", "HEAD")
    changed = output("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return f"{found} and changes" if found and changed else found or "unknown"


def machine():
    models = {
        line.split(":", 1)[1].strip()
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith(("model name", "CPU part"))
    }
    return f"{', '.join(sorted(models))}, {os.cpu_count()} cores"


def run(name, command):
    """The program's lines, each saying how it came about; None when the program failed."""
    load, begin = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "lines.json")
        done = subprocess.run([*command, "--json", str(file)], cwd=ROOT)
        lines = json.loads(file.read_text()) if file.exists() else []
    print(f"   {len(lines)} lines in {time.monotonic() - begin:.0f} s", flush=True)
    if done.returncode != 0 or not lines:
        return None
    shown = [
        os.path.relpath(part, ROOT) if part.startswith(str(ROOT)) else part for part in command
    ]
    about = {
        "program": name,
        "command": shlex.join(["python" if part == sys.executable else part for part in shown]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "load": round(load, 2),
    }
    return [{**line, **about} for line in lines]


def set_up(whole):
    """What a program names and is not there; nothing more is fetched."""
    for name, words in PEERS.items():
        if f"{{{name}}}" in whole:
            subprocess.run([ROOT / "scripts/side_venv.sh", *words], cwd=ROOT, check=True)


def number(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def judged(lines):
    """Every bar with what was found: for whoever reads the file."""
    result = []
    for bar in BARS:
        line = bar.line(lines)
        about = {"bar": bar.id, "what": bar.what, "sign": bar.sign, "bound": bar.bound}
        found = (
            {"line": line["name"], "value": bar.value(line), "met": bar.met(line)} if line else {}
        )
        result.append({**about, "unit": bar.unit, "met": None, **found})
    return result


def table(lines, before=""):
    """The table of the bars, and below it when and where its lines were measured. Of programs that
    have no lines here, it is as `before` has it: a fresh clone has no results but those."""
    old = before.splitlines()
    own = {line["program"] for line in lines}
    rows = [
        "| bar | what | bound | figure | yardstick of the same run | met | command |",
        "|---|---|---|---|---|---|---|",
    ]
    used = {}
    for bar in BARS:
        line = bar.line(lines)
        sign = {"<=": "at most", ">=": "at least"}[bar.sign]
        start = f"| {bar.id} | {bar.what} | {sign} {number(bar.bound)} {bar.unit}".rstrip()
        known = [row for row in old if row.startswith(f"{start} |")]
        if line is None and bar.program not in own and known:
            rows.append(known[0])
            continue
        if line is None:
            command = f"`bench.py --only {bar.program}`" if bar.program in PROGRAMS else ""
            rows.append(f"{start} | not measured | | | {command} |")
            continue
        used[line["program"]] = line
        yardstick = f"{line['yardstick']}: {number(line['yardstick_figure'])}"
        met = "yes" if bar.met(line) else "**no**"
        figure = f"{number(bar.value(line))} {bar.unit}".rstrip()
        rows.append(f"{start} | {figure} | {yardstick} | {met} | `{line['command']}` |")
    runs = [
        f"{name}: {line['date'][:10]}, commit {line['commit']}, load {line['load']}, {line['machine']}"
        for name, line in used.items()
    ]
    runs += [
        row.removeprefix("- ")
        for row in old
        if row.startswith("- ") and row[2:].split(":")[0] not in own
    ]
    return "\n".join([*rows, "", *(f"- {run}" for run in runs)]).rstrip()


def write_table(lines):
    """Into the document; the table."""
    text = DOCUMENT.read_text()
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{DOCUMENT} has no markers {BEGIN} and {END}")
    new = table(lines, old)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{new}\n{END}{after}")
    return new


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(PROGRAMS), metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--programs", default=str(ROOT / "build/release/benchmarks/cpp"))
    options = parser.parse_args()
    names = [] if options.table else options.only or list(PROGRAMS)
    places = {
        "python": HERE,
        "bin": options.programs,
        **{name: ROOT / f".venv-{name}/bin/python" for name in PEERS},
    }
    kept = json.loads(RESULTS.read_text())["lines"] if RESULTS.exists() else []
    found, failed = [], []
    for i, name in enumerate(names):
        whole, quick = PROGRAMS[name]
        set_up(whole)
        words = f"{whole} {quick if options.quick else ''}".split()
        command = [word.format(**places) for word in words]  # a path may have spaces
        if command[0].endswith(".py"):
            command.insert(0, sys.executable)
        print(f"== {i + 1} of {len(names)}, {name}: {shlex.join(command)}", flush=True)
        lines = run(name, command)
        if lines is None:
            failed.append(name)
            continue
        found += lines
        kept = [line for line in kept if line["program"] != name] + lines
        if not options.quick:  # after every program: a long run that is broken off keeps its part
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            report = {"lines": kept, "bars": judged(kept)}
            RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    if options.quick:
        print(table(found))
    else:
        print(write_table(kept))
        print(f"\nall lines: {RESULTS.relative_to(ROOT)}; the table: {DOCUMENT.relative_to(ROOT)}")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
