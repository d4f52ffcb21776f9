# Writes the table of versions into docs/frameworks.md: python scripts/versions_table.py [WORD]
"""From what test_versions.sh left in build/versions: one JUnit file per test file and line of
versions.txt, empty where there is no result. Ends with 1 if anything failed, or has no result. With a
WORD only lines that contain it, and nothing is written.
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


class Results:
    """Of one line: how many tests ended how, which failed, how many were skipped for which reason, and
    which files have no result: they were not run, or not to the end."""

    def __init__(self, folder: pathlib.Path):
        self.ended: collections.Counter = collections.Counter()
        self.reasons: collections.Counter = collections.Counter()
        self.failed: list[str] = []
        self.missing: list[str] = []
        for file in sorted(folder.glob("*.xml")):
            name = file.name.removesuffix(".py.xml").rpartition(".")[2]
            if not file.stat().st_size:
                self.missing.append(name)
                continue
            for case in ET.parse(file).iter("testcase"):
                child = next((c.tag for c in case if c.tag in _ENDS), "passed")
                self.ended[_ENDS.get(child, child)] += 1
                if child == "skipped":
                    self.reasons[case.find("skipped").get("message")] += 1
                elif child != "passed":
                    self.failed.append(f"{name} {case.get('name')}")


_ENDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    ok = True
    rows = ["| Python | framework | passed | failed | skipped |", "| --- | --- | --- | --- | --- |"]
    notes: dict[str, list[str]] = {"Skipped": [], "Failed": [], "No result": []}
    skipped: dict[str, list[str]] = {}
    for python, framework in lines(word):
        what = framework.replace("==", " ")
        line = f"Python {python}, {what}"
        folder = ROOT / "build" / "versions" / f"{framework.replace('==', '-')}-{python}.results"
        found = Results(folder)
        ok = ok and found.ended["passed"] > 0 and not found.failed and not found.missing
        counts = " | ".join(str(found.ended[how]) for how in ("passed", "failed", "skipped"))
        rows.append(f"| {python} | {what} | {counts if found.ended else 'no result | |'} |")
        for reason, count in found.reasons.items():
            skipped.setdefault(reason, []).append(f"{count} on {line}")
        for title, names in (("Failed", found.failed), ("No result", found.missing)):
            if names:
                notes[title].append(f"- {line}: {', '.join(names)}")
    if skipped:
        notes["Skipped"] = ["| tests that need more | how many, and where |", "| --- | --- |"]
    for reason, at in sorted(skipped.items()):
        notes["Skipped"].append(f"| {reason} | {'; '.join(at)} |")
    parts = [[f"{title}:", "", *what, ""] for title, what in notes.items() if what]
    text = "\n".join([*rows, "", *(row for part in parts for row in part)]).rstrip()
    print(text)
    if not word:
        document = PATH.read_text()
        before, _, rest = document.partition(BEGIN)
        _, _, after = rest.partition(END)
        PATH.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
