"""Checks documents: sentences of at most 25 words, and links that lead to a file and a heading.

Sentences are those of paragraphs and lists; code, tables and headings have none. A sentence ends
with a full stop, a question or an exclamation mark, or with its block: a colon or a semicolon ends
none. Exits 1 and lists what is wrong.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DIARY = "docs/measurements-history.md"  # kept as it was written
LONGEST = 25  # words

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4,}\S.*(?:\n|$))+")  # code, too
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")
END = re.compile(r"(?<=[.!?])[*_)]*\s+")


def sentences(text: str) -> list[str]:
    text = INDENTED.sub("\n", FENCE.sub("\n\n", text))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "|"))]
    blocks = (" ".join(block.split()) for block in BLOCK.split("\n".join(lines)))
    return [s for block in blocks for s in END.split(LINK.sub("link", block)) if s]


def words(sentence: str) -> int:
    """Code between backticks is one word, whatever it holds."""
    return len(re.findall(r"[\w`].*?(?=\s|$)", re.sub(r"`[^`]*`", "`", sentence)))


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def faults(root: Path) -> list[str]:
    found = []
    for path in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]):
        name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        for target in LINK.findall(FENCE.sub("", text)):
            file, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", file):
                continue
            place = (path.parent / file) if file else path
            if not place.exists():
                found.append(f"{name}: link to {target}: there is no {file}")
            elif anchor and anchor not in anchors(place.read_text(encoding="utf-8")):
                found.append(f"{name}: link to {target}: no heading gives #{anchor}")
        if name != DIARY:
            for sentence in sentences(text):
                if words(sentence) > LONGEST:
                    found.append(f"{name}: {words(sentence)} words: {sentence}")
    return found


def check_itself() -> None:
    assert sentences("One; two: three (four). Five.") == ["One; two: three (four).", "Five."]
    assert sentences("One two. Three\nfour:\n- five `a b`\n\n```\nno\n```\n| no |\n# no\n") == [
        "One two.",
        "Three four:",
        "- five `a b`",
    ]
    assert sentences("One:\n\n    no = code\n    no more\n\nTwo.\n") == ["One:", "Two."]
    assert words("- five `a b` (or [x](y)).") == 4
    assert anchors("# A b, `c-d`\n```\n# no\n```\n") == {"a-b-c-d"}


if __name__ == "__main__":
    check_itself()
    wrong = faults(Path(__file__).resolve().parent.parent)
    print("\n".join(wrong) or "prose: ok")
    sys.exit(1 if wrong else 0)
