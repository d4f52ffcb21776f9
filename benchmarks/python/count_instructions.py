# Instructions of the hot paths, counted by callgrind, beside the counts of a stored file.
"""count_instructions.py HOT_PATHS [--update] [--only PATH]

HOT_PATHS is the program of benchmarks/cpp. Every path runs at the levels `baseline` and `avx2`
(callgrind knows no AVX-512). Counts do not depend on what else the machine does, but on the
compiler and the libraries: benchmarks/instructions.json names those it was made with, and under
others the counts are only shown. Ends with 1 when a path takes more than the tolerance beyond its
stored count, or is stored and not there any more; fewer are said. --update stores what was counted.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

STORED = pathlib.Path(__file__).resolve().parents[1] / "instructions.json"
LEVELS = ("baseline", "avx2")
TOLERANCE = 3.0  # per cent
CALLGRIND = ["valgrind", "--tool=callgrind", "--toggle-collect=measured_path"]


def count(program, path, level):
    """Instructions per unit of `path`, and what the unit is; None where the machine has no `level`."""
    done = subprocess.run(
        [*CALLGRIND, "--callgrind-out-file=/dev/null", program, path],
        capture_output=True,
        text=True,
        env={**os.environ, "TRAINMON_CPU_LEVEL": level},
    )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or collected is None:
        sys.exit(f"{program} {path} under callgrind failed:\n{done.stdout}{done.stderr}")
    run = json.loads(done.stdout)
    if run["level"] != level:
        return None
    if int(collected[1]) < run["units"]:
        sys.exit(f"{path}: {collected[1]} instructions for {run['units']} units: nothing counted")
    return round(int(collected[1]) / run["units"], 3), run["unit"]


def toolchain(program):
    found = json.loads(subprocess.check_output([program, "--toolchain"]))
    valgrind = subprocess.check_output(["valgrind", "--version"], text=True).strip()
    return {**found, "valgrind": valgrind, "machine": platform.machine()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--update", action="store_true", help="store the counts of this run")
    parser.add_argument("--only", metavar="PATH")
    options = parser.parse_args()
    paths = subprocess.check_output([options.program], text=True).split()
    if options.only and (options.only not in paths or options.update):
        parser.error(f"--only takes one of {', '.join(paths)}, and no --update")
    here = toolchain(options.program)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {"toolchain": {}, "counts": {}}

    counts, verdicts, absent = {}, {"more": [], "fewer": [], "new": []}, set()
    print(f"{'instructions of':32}{'stored':>14}{'here':>14}{'change':>10}  per")
    for path in [options.only] if options.only else paths:
        for level in LEVELS:
            name = f"{path}, {level}"
            found = count(options.program, path, level)
            if found is None:
                absent.add(name)
                print(f"{name:32} not counted: this machine has no {level}")
                continue
            counts[name], unit = found
            before = stored["counts"].get(name)
            change = 100 * (counts[name] / before - 1) if before else 0.0
            text = f"{change:+.1f} %" if before else "new"
            print(f"{name:32}{before or '':>14}{counts[name]:>14}{text:>10}  {unit}", flush=True)
            if not before:
                verdicts["new"].append(name)
            elif abs(change) > TOLERANCE:
                verdicts["more" if change > 0 else "fewer"].append(f"{name} {text}")

    if options.update:
        if absent:
            sys.exit("not stored: that takes a machine that has all levels")
        report = {"toolchain": here, "counts": counts}
        STORED.write_text(json.dumps(report, indent=1) + "\n")
        print(f"stored in {STORED}")
        return 0
    differing = [key for key in here if here[key] != stored["toolchain"].get(key)]
    if differing:
        print("NOT COMPARED: the stored counts are of another toolchain:")
        for key in differing:
            print(f"  {key}: here {here[key]}, stored {stored['toolchain'].get(key)}")
        return 0
    gone = [] if options.only else sorted(set(stored["counts"]) - set(counts) - absent)
    verdicts["gone"] = gone
    for verdict, names in verdicts.items():
        if names:
            print(f"{verdict}: {'; '.join(names)}")
    if any(verdicts.values()):
        print("meant so? make count-instructions ARGS=--update stores the counts of this run")
    return 1 if verdicts["more"] or verdicts["new"] or gone else 0


if __name__ == "__main__":
    sys.exit(main())
