# Writes docs/reliability.md from tests/promises.json and tests/campaign.json. With a file of campaign lines
# (TRAINMON_CAMPAIGN), takes these into tests/campaign.json first: python scripts/reliability_doc.py [LINES]
from __future__ import annotations

import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
PROMISES = ROOT / "tests" / "promises.json"
FIGURES = ROOT / "tests" / "campaign.json"

SECTIONS = {
    "A": "Training is untouched",
    "B": "Nothing of ours crashes or hangs it",
    "C": "Memory and time have bounds",
    "D": "Files outlive crashes",
    "E": "Many at the same time",
    "F": "Hostile and odd input",
}
NOT_PROVEN = "not proven"

HEAD = """\
# What is promised, and what proves it

Each promise names the tests that hold it and what they cannot show. `python scripts/reliability_doc.py` writes this page from
`tests/promises.json`. A test checks that each named test exists. `make test` runs all but those of `tests/gpu`, `tests/browser` and `tests/fuzz`.

`make torture` runs the long form of the campaign, whose figures stand [below](#the-campaign). It takes hours. `TRAINMON_WHOLE=0.1` runs a
tenth of the Python part.

A promise that no test holds is called **not proven**.
"""

CAMPAIGN = """\

## The campaign

Each line is what ran last, on which day and from which commit. Failures are hangs, aborts, holes, wrong values and wrong exit codes.

"""


def promises() -> list[dict]:
    return json.loads(PROMISES.read_text(encoding="utf-8"))


def figures() -> dict[str, dict]:
    """By campaign, what ran last."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))


def is_there(test: str) -> bool:
    """Whether a test exists: FILE, FILE::function, FILE::Class.function or FILE::Suite.Name of GoogleTest."""
    name, _, function = test.partition("::")
    file = ROOT / name
    if not file.is_file():
        return False
    if not function:
        return True
    text = file.read_text(encoding="utf-8")
    group, _, own = function.rpartition(".")
    if file.suffix != ".py":
        return bool(re.search(rf"\bTEST(?:_F|_P)?\(\s*{group},\s*{own}\)", text))
    place = rf"^class {group}\b.*?^    def {own}\(" if group else rf"^def {own}\("
    return bool(re.search(place, text, re.M | re.S))


def ran(name: str, figure: dict) -> str:
    failures = f"{figure['failures']:,} failure{'' if figure['failures'] == 1 else 's'}"
    return f"{figure['count']:,} {figure['unit']}, {failures} (`{name}`, {figure['date']})"


def section(promise: dict, known: dict[str, dict]) -> str:
    lines = [f"\n### {promise['id']}\n", promise["promise"], ""]
    lines += [f"- `{test['test']}`: {test['does']}" for test in promise["tests"]]
    lines += [
        f"- Campaign: {ran(name, known[name])}."
        for name in promise.get("campaigns", [])
        if name in known
    ]
    if promise["cannot"]:
        lines.append(f"- It cannot show: {promise['cannot']}")
    if "missing" in promise:
        lines.append(f"- **{NOT_PROVEN}**: {promise['missing']}")
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/reliability.md."""
    known, title, out = figures(), "", [HEAD]
    open_ones = [f"[{p['id']}](#{p['id'].lower()})" for p in promises() if "missing" in p]
    if open_ones:
        out.append(f"\nThese are not proven today: {', '.join(open_ones)}.\n")
    for promise in promises():
        if promise["id"][0] != title:
            title = promise["id"][0]
            out.append(f"\n## {title}. {SECTIONS[title]}\n")
        out.append(section(promise, known))
    out.append(
        CAMPAIGN + "| campaign | what | figures | seconds | commit |\n|---|---|---|---|---|\n"
    )
    for name, figure in sorted(known.items()):
        failures = f"{figure['failures']:,} failures" if figure["failures"] else "no failure"
        out.append(
            f"| `{name}` | {figure['what']} | {figure['count']:,} {figure['unit']}, {failures}, "
            f"{figure['date']} | {figure['seconds']:,.0f} | `{figure['commit']}` |\n"
        )
    return "".join(out)


def take(lines: pathlib.Path) -> None:
    """Puts the last line of each campaign into the kept figures, with today's date and the commit."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(
        git, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    kept = figures()
    for line in lines.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        name = found.pop("campaign")
        kept[name] = {**found, "date": date, "commit": commit}
    text = json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False)
    FIGURES.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take(pathlib.Path(sys.argv[1]))
    PAGE.write_text(page(), encoding="utf-8")
