"""Checks sentences: at most 25 words in documents, messages and comments.
Checks links of documents: each leads to a file and a heading.

Sentences of a document are those of paragraphs and lists; code, tables and headings have none. A
sentence ends with a full stop, a question or an exclamation mark, or with its block: a colon or a
semicolon ends none. Messages are the strings of the sources, joined where they stand side by side;
SQL is none. With names of files only their sentences are looked at. Exits 1 and lists what is wrong.
"""

from __future__ import annotations

import ast
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
STRING = r'[fu]?"((?:[^"\\\n]|\\.)*)"'
STRINGS = re.compile(rf"{STRING}(?:\s*{STRING})*")
SQL = re.compile(r"\b(?:SELECT|UPDATE|INSERT|CREATE TABLE|INTEGER|LEFT JOIN)\b")
HASHED = re.compile(r"(?:^[ \t]*#(?:[ ].*)?\n)+", re.MULTILINE)
COMMENT = re.compile(r"(?:^[ \t]*//(?:[ ].*)?\n)+", re.MULTILINE)


def sentences(text: str) -> list[str]:
    text = INDENTED.sub("\n", FENCE.sub("\n\n", text))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "|"))]
    blocks = (" ".join(block.split()) for block in BLOCK.split("\n".join(lines)))
    return [s for block in blocks for s in END.split(LINK.sub("link", block)) if s]


def words(sentence: str) -> int:
    """Code between backticks is one word, whatever it holds."""
    return len(re.findall(r"[\w`].*?(?=\s|$)", re.sub(r"`[^`]*`", "`", sentence)))


def messages(source: str) -> list[str]:
    """The strings of a source of C++ or Python, of which adjacent ones are one."""
    found = [
        "".join(re.findall(STRING, m[0])).replace("\\n", "\n\n") for m in STRINGS.finditer(source)
    ]
    return [text for text in found if not SQL.search(text)]


def comments(source: str) -> list[str]:
    """Comments of C++ that have lines of their own; an indented line is an entry of a list."""
    lines = (re.sub(r"^[ \t]*// ?", "", m[0], flags=re.MULTILINE) for m in COMMENT.finditer(source))
    return [re.sub(r"\n {2}(?=\S)", "\n- ", text) for text in lines]


def python_comments(source: str) -> list[str]:
    """Docstrings, without their examples and lists of parameters aligned in columns made lists, and
    comments that have lines of their own."""
    found = [re.sub(r"^[ \t]*# ?", "", m[0], flags=re.MULTILINE) for m in HASHED.finditer(source)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = re.sub(
                r"^>>>.*?(?=\n\n|\Z)", "", ast.get_docstring(node) or "", flags=re.M | re.S
            )
            found.append(re.sub(r"^(\S+(?:, \S+)*) {2,}(?=\S)", r"- \1 ", text, flags=re.MULTILINE))
    return found


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
            found += too_long(name, text)
    for folder in ("include", "src", "python"):
        for path in sorted((root / folder).rglob("*.*")):
            if path.suffix not in (".h", ".cpp", ".py", ".cu"):
                continue
            name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            find_comments = python_comments if path.suffix == ".py" else comments
            texts = messages(text) + find_comments(text)
            found += [fault for one in texts for fault in too_long(name, one)]
    return found


def too_long(name: str, text: str) -> list[str]:
    counted = ((words(sentence), sentence) for sentence in sentences(text))
    return [f"{name}: {count} words: {sentence}" for count, sentence in counted if count > LONGEST]


def check_itself() -> None:
    assert sentences("One; two: three (four). Five.") == ["One; two: three (four).", "Five."]
    assert sentences("One two. Three\nfour:\n- five `a b`\n\n```\nno\n```\n| no |\n# no\n") == [
        "One two.",
        "Three four:",
        "- five `a b`",
    ]
    assert sentences("One:\n\n    no = code\n    no more\n\nTwo.\n") == ["One:", "Two."]
    assert words("- five `a b` (or [x](y)).") == 4
    assert messages('f("a b {c}. "\n  f"d"); g("SELECT a"); """e"""') == ["a b {c}. d", "e"]
    assert comments("int a;  // no\n// One\n// two.\n//   three  four\n") == [
        "One\ntwo.\n- three  four\n"
    ]
    source = '# One.\n# Two\n\ndef f():\n    """Three.\n\n    a, b  four\n\n    >>> 5\n    """\n'
    assert python_comments(source) == ["One.\nTwo\n", "", "Three.\n\n- a, b four\n\n"]
    assert anchors("# A b, `c-d`\n```\n# no\n```\n") == {"a-b-c-d"}


if __name__ == "__main__":
    check_itself()
    pages = [Path(name) for name in sys.argv[1:]]
    wrong = [one for page in pages for one in too_long(page.name, page.read_text(encoding="utf-8"))]
    wrong = wrong if pages else faults(Path(__file__).resolve().parent.parent)
    print("\n".join(wrong) or "prose: ok")
    sys.exit(1 if wrong else 0)
