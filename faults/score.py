"""What `trainmon diagnose` says of each run, beside the truth; and the tables of docs/detection.md.

    python faults/score.py RUNS... [--trainmon COMMAND] [--write docs/detection.md] [--note TEXT]

RUNS are folders of campaign.py. A fault counts when the witness saw it at the place that was meant.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHECKS = (
    "input",
    "finite",
    "gap",
    "replicas",
    "reduce",
    "exp_avg",
    "exp_avg_sq",
    "update",
    "zero",
    "config",
    "norm",
)
BEGIN, END = "<!-- faults: written by make faults from here -->", "<!-- faults: to here -->"


def diagnosed(command: str, run: Path) -> dict:
    done = subprocess.run(
        [command, "diagnose", os.fspath(run), "--json"], capture_output=True, text=True, timeout=300
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{run}: diagnose ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def first_step(run: Path) -> int:
    return min(
        json.loads(next(run.glob("rank_*/restart_0000/run.json")).read_text())["start_steps"]
    )


def interval(hits: int, of: int) -> str:
    """Percent, with the interval of Wilson (1927) at 95 %."""
    if of == 0:
        return "-"
    z, share = 1.96, hits / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return f"{100 * share:.1f} [{100 * max(0.0, middle - half):.1f}, {100 * min(1.0, middle + half):.1f}]"


class Scored:
    """One fault: what was found, and where."""

    def __init__(self, truth: dict, answer: dict, begin: int):
        self.fault, self.setting, self.exact = truth["fault"], truth["setting"], truth["exact"]
        self.meant, self.begin = truth["expected"], begin
        seen = truth["seen"]
        self.happened = seen is not None and (
            (seen["step"], seen["stage"]) == (self.meant["step"], self.meant["stage"])
            and seen["ranks"] == self.meant["differ_on"]
            and set(seen["tensors"]) <= set(self.meant["tensors"])
        )
        self.verdict = answer["verdict"]
        self.findings = answer["findings"]
        self.found = self.verdict is not None
        self.delay = self.verdict["step"] - begin - self.meant["step"] if self.found else None
        self.right_step = self.found and self.delay == 0
        self.right_stage = self.found and self.verdict["stage"] == self.meant["stage"]
        named = set(self.verdict["tensors"]) if self.found else set()
        # Of several tensors that were wrong only those that the witness saw can be told.
        wrong = set(seen["tensors"]) if seen else set()
        self.right_tensors = self.found and named == wrong
        self.among_tensors = self.found and wrong <= named
        ranks = set(self.verdict["ranks"]) if self.found else set()
        self.right_ranks = self.found and ranks == set(self.meant["ranks"])
        # Two ranks that differ, of which the evidence cannot tell which is wrong.
        self.in_ranks = self.found and set(self.meant["ranks"]) <= ranks
        # Said at its time, and not as certain.
        self.noticed = not self.found and any(
            one["step"] - begin - self.meant["step"] in (0, 1) for one in self.findings
        )
        self.checks_in_time = {
            one["check"]
            for one in self.findings
            if one["certain"] and one["step"] - begin == self.meant["step"]
        }


def baselines(truth: dict, loss_bar: float) -> dict[str, bool]:
    """What would have alarmed at any time from the fault on."""
    at = truth["expected"]["step"]
    loss = [statistics.fmean(of) for of in zip(*truth["losses"], strict=True)]
    norm = [max(of) for of in zip(*truth["norms"], strict=True)]
    average, ema = norm[0], False
    for step, one in enumerate(norm):
        if step >= at and not one <= 1.5 * average:
            ema = True
        average = 0.97 * average + 0.03 * one if math.isfinite(one) else average
    return {
        "loss, robust z": any(not loss_z(loss, step) <= loss_bar for step in range(at, len(loss))),
        "1.5 times the mean gradient norm": ema,
        "hash of all weights, compared over ranks": truth["states_differ_at"] is not None,
    }


def loss_z(loss: list[float], step: int) -> float:
    before = loss[max(0, step - 12) : step]
    middle = statistics.median(before)
    spread = 1.4826 * statistics.median(abs(one - middle) for one in before) + 0.02
    return abs(loss[step] - middle) / spread


def loss_bar(truths: list[dict]) -> float:
    """1.5 times the largest of the clean twins, from where a fault may strike."""
    largest = 0.0
    for truth in truths:
        loss = [statistics.fmean(of) for of in zip(*truth["losses"], strict=True)]
        largest = max([largest, *(loss_z(loss, step) for step in range(12, len(loss)))])
    return 1.5 * largest


def table(head: list[str], rows: list[list]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def totals(faults: list[Scored]) -> list:
    found = [one for one in faults if one.found]
    count = len(found)
    return [
        len(faults),
        interval(count, len(faults)),
        interval(sum(one.noticed for one in faults), len(faults)),
        interval(sum(one.right_step for one in found), count),
        interval(sum(one.right_stage for one in found), count),
        interval(sum(one.right_tensors for one in found), count),
        interval(sum(one.among_tensors for one in found), count),
        interval(sum(one.right_ranks for one in found), count),
        interval(sum(one.in_ranks for one in found), count),
    ]


def noticed_by(faults: list[Scored]) -> str:
    """Checks whose notices came at the time of these faults."""
    checks = {
        finding["check"]
        for one in faults
        for finding in one.findings
        if one.noticed and finding["step"] - one.begin - one.meant["step"] in (0, 1)
    }
    return ", ".join(sorted(checks))


def clean_text(records: list[dict]) -> list[str]:
    """What records of clean.py are of."""
    if not records:
        return []
    of: dict[str, int] = {}
    for one in records:
        of[one["setting"]] = of.get(one["setting"], 0) + one["steps"]
    settings = ", ".join(f"{name} {steps:,}" for name, steps in sorted(of.items()))
    noticed = sum(bool(one["noticed"]) for one in records if one["verdict"] is None)
    variations = len({one["variation"] for one in records})
    return [
        f"Clean steps of each setting, beside the twins: {settings}. Their {len(records):,} records have "
        f"{variations} legitimate variations, such as loaded states and schedules. {noticed} have a notice.",
    ]


def text(
    faults: list[Scored],
    clean: list[tuple[dict, dict]],
    records: list[dict],
    alarms: dict,
    note: str,
) -> list[str]:
    head = [
        "n",
        "found",
        "noticed",
        "step",
        "stage",
        "tensors",
        "among the named",
        "rank",
        "rank, or one of two",
    ]
    lines = [note, ""] if note else []
    meant = [one for one in faults if one.happened]
    lines += table(
        ["faults", *head],
        [
            ["exact class", *totals([one for one in meant if one.exact])],
            ["others", *totals([one for one in meant if not one.exact])],
        ],
    )
    steps = sum(truth["steps"] for truth, _ in clean) + sum(one["steps"] for one in records)
    false = sum(answer["verdict"] is not None for _, answer in clean)
    false += sum(one["verdict"] is not None for one in records)
    early = sum(one.found and one.delay < 0 for one in faults)
    lines += [
        "",
        "Percent, with intervals of 95 %: found as certain, or noticed at its time. The other columns are shares of "
        "what was found.",
        f"{len(faults) - len(meant)} of {len(faults)} planted faults did not show where they were meant, by the "
        "witness, and do not count.",
        f"False alarms that are certain: {false} in {steps:,} clean steps, and {early} before a fault.",
        *clean_text(records),
        "",
    ]
    each = []
    for name in dict.fromkeys(one.fault for one in faults):
        of = [one for one in meant if one.fault == name]
        found = [one for one in of if one.found]
        each.append(
            [
                name, len(of), len(found), sum(one.noticed for one in of),
                sum(one.right_step for one in found),
                sum(one.right_tensors for one in found), sum(one.among_tensors for one in found),
                sum(one.right_ranks for one in found), sum(one.in_ranks for one in found),
                ", ".join(sorted({one.verdict["check"] for one in found})) or noticed_by(of),
            ]
        )  # fmt: skip
    lines += table(["fault", *head[:4], *head[5:], "by"], each)
    lines += ["", "Each check switched off: faults that no other check finds in their step.", ""]
    need = []
    for check in CHECKS:
        lost = sorted({one.fault for one in meant if one.checks_in_time == {check}})
        count = sum(one.checks_in_time == {check} for one in meant)
        need.append([f"`{check}`", count, "; ".join(lost[:6]) + ("; ..." if len(lost) > 6 else "")])
    lines += table(["check", "lost", "of these faults"], need)
    lines += ["", "Beside it, on the same runs:", ""]
    lines += table(
        ["baseline", "faults of the exact class that it saw, percent"],
        [[name, interval(*seen)] for name, seen in alarms.items()],
    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--trainmon", default=os.fspath(Path(sys.executable).with_name("trainmon")))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--note", default="")
    options = parser.parse_args()

    places = sorted(p.parent for folder in options.runs for p in folder.rglob("truth.json"))
    if not places:
        raise SystemExit(f"no truth.json below {', '.join(map(str, options.runs))}")
    truths = [json.loads((place / "truth.json").read_text()) for place in places]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda place: diagnosed(options.trainmon, place), places))
    clean = [pair for pair in zip(truths, answers) if pair[0]["fault"] is None]
    faults, alarms = [], {}
    for truth, answer, place in zip(truths, answers, places):
        if truth["fault"] is None:
            continue
        one = Scored(truth, answer, first_step(place))
        faults.append(one)
        if not one.happened:
            print(f"{place}: {one.fault}: meant {truth['expected']}, seen {truth['seen']}")
        elif not (one.right_step and one.right_tensors and one.in_ranks):
            said = one.verdict and {
                k: one.verdict[k] for k in ("check", "stage", "ranks", "tensors")
            }
            print(f"{place}: {one.fault}: step {one.delay} late, said {said}, meant {one.meant}")
        if one.happened and one.exact:
            of_setting = [t for t, _ in clean if t["setting"] == one.setting]
            for name, saw in baselines(truth, loss_bar(of_setting)).items():
                hits, of = alarms.get(name, (0, 0))
                alarms[name] = (hits + saw, of + 1)
    records = [
        json.loads(line)
        for folder in options.runs
        for path in sorted(folder.rglob("clean.jsonl"))
        for line in path.read_text().splitlines()
    ]
    lines = text(faults, clean, records, alarms, options.note)
    print("\n".join(lines))
    if options.write:
        whole = options.write.read_text()
        before, rest = whole.split(BEGIN)
        after = rest.split(END)[1]
        options.write.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
