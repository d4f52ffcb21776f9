# Writes the table of versions into docs/frameworks.md: python scripts/versions_table.py [WORD]
"""From what test_versions.sh left in build/versions: one JUnit file per line of versions.txt. Ends with 1
if anything failed, or if a line has no result. With a WORD only lines that contain it, and nothing is
written.
"""

from __future__ import annotations

import collections
import pathlib
import sys
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATH = ROOT / "docs" / "frameworks.md"
BEGIN, END = "<!-- versions table: begin -->", "<!-- versions table: end -->"


def lines(word: str) -> list[tuple[str, str]]:
    """(Python, framework) of each line of versions.txt."""
    text = (ROOT / "scripts" / "versions.txt").read_text()
    found = [tuple(line.split()[:2]) for line in text.splitlines() if line[0] != "#"]
    return [pair for pair in found if word in " ".join(pair)]


def result(file: pathlib.Path) -> tuple[collections.Counter, collections.Counter]:
    """How many tests ended how, and how many were skipped for which reason."""
    ended: collections.Counter = collections.Counter()
    reasons: collections.Counter = collections.Counter()
    for case in ET.parse(file).iter("testcase"):
        child = next((c.tag for c in case if c.tag in ("failure", "error", "skipped")), "passed")
        ended["failed" if child in ("failure", "error") else child] += 1
        if child == "skipped":
            reasons[case.find("skipped").get("message")] += 1
    return ended, reasons


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    failed = False
    rows = ["| Python | framework | passed | failed | skipped |", "| --- | --- | --- | --- | --- |"]
    skipped: dict[str, list[str]] = {}
    for python, framework in lines(word):
        what = framework.replace("==", " ")
        file = ROOT / "build" / "versions" / f"{framework.replace('==', '-')}-{python}.xml"
        ended, reasons = result(file) if file.exists() else ({}, {})
        if not ended or ended["failed"] or not ended["passed"]:
            failed = True
        if not ended:
            rows.append(f"| {python} | {what} | no result | | |")
            continue
        counts = " | ".join(str(ended[how]) for how in ("passed", "failed", "skipped"))
        rows.append(f"| {python} | {what} | {counts} |")
        for reason, count in reasons.items():
            skipped.setdefault(reason, []).append(f"{count} on Python {python}, {what}")
    notes = [f"- {reason}: {'; '.join(where)}" for reason, where in sorted(skipped.items())]
    text = "\n".join([*rows, "", "Skipped:", "", *notes])
    print(text)
    if not word:
        document = PATH.read_text()
        before, _, rest = document.partition(BEGIN)
        _, _, after = rest.partition(END)
        PATH.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
