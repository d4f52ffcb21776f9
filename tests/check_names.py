"""Checks that no two C++ files of a folder give a constant or a type of their own the same name.

The build compiles several files of a folder as one, and which ones depends on the preset and on how
many files there are. Two such names compile today and do not when the folder gets a file. A folder
whose CMakeLists.txt compiles each file alone may repeat names. Exits 1 and lists each violation.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

CONSTANT = re.compile(r"[ ,](k[A-Z]\w*)(?:\[\w*\])*\s*(?=[={])")
TYPE = re.compile(r"(?:struct|class|enum class|enum) (\w+)[^;]*$")
ALONE = re.compile(r"\b(?:UNITY_BUILD OFF|UNITY_BUILD_BATCH_SIZE 0)\b")


def own_names(text: str) -> dict[str, int]:
    """Of each constant and type of the anonymous namespace its first line, from 1."""
    found: dict[str, int] = {}
    inside = False
    for line, code in enumerate(text.splitlines(), start=1):
        if code.startswith("namespace {"):
            inside = True
        elif code.startswith("}  // namespace") and code.rstrip().endswith("namespace"):
            inside = False
        elif inside and re.match(r"(?:constexpr|const|constinit) ", code):
            for name in CONSTANT.findall(code):
                found.setdefault(name, line)
        elif inside and (named := TYPE.match(code)):
            found.setdefault(named[1], line)
    return found


def violations(texts: dict[str, str]) -> list[str]:
    """Of the files of one folder, by name."""
    places: dict[str, list[str]] = defaultdict(list)
    for file, text in texts.items():
        for name, line in own_names(text).items():
            places[name].append(f"{file}:{line}")
    return [
        f"{', '.join(at)}: each has a {name} of its own"
        for name, at in places.items()
        if len(at) > 1
    ]


def self_test() -> None:
    one = "namespace a {\nnamespace {\nconstexpr int kOne = 1, kTwo{2};\nstruct S {\n  int kIn = 0;\n};\n}  // namespace\n"
    after = "constexpr int kAfter = 1;\n}  // namespace a\n"
    assert own_names(one + after) == {"kOne": 3, "kTwo": 3, "S": 4}, own_names(one + after)
    other = "namespace {\nconst double kTwo[3] = {};\nstruct T;\n}  // namespace\n"
    assert violations({"a.cpp": one, "b.cpp": other}) == [
        "a.cpp:3, b.cpp:2: each has a kTwo of its own"
    ]
    assert violations({"a.cpp": one, "b.cpp": after}) == []


if __name__ == "__main__":
    self_test()
    root = Path(__file__).resolve().parent.parent
    problems = []
    for folder in sorted({file.parent for file in (root / "src").rglob("*.cpp")}):
        lists = next(f for at in (folder, *folder.parents) if (f := at / "CMakeLists.txt").exists())
        if ALONE.search(lists.read_text(encoding="utf-8")):
            continue
        files = sorted(folder.glob("*.cpp"))
        problems += violations(
            {str(f.relative_to(root)): f.read_text(encoding="utf-8") for f in files}
        )
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))
