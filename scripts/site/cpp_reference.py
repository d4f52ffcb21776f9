"""The C++ reference: the declarations of the headers in include/trainmon, with their comments."""

from __future__ import annotations

import pathlib
import re

INTRO = """\
# C++ reference

This page is generated from the headers in `include/trainmon`. The comment above a declaration gives its units, threads and errors. Everything is
in the namespace `trainmon`.

## A program that embeds the core

It links `trainmon_monitor`. `make test` builds it and runs it.

```cpp
{example}
```
"""

NAMED = re.compile(
    r"^(?:enum class|struct|class|namespace) (\w+)|^[^/\s][^=;{(]*?(\w+)(?=\(| = |;)", re.M
)
HIDDEN = re.compile(r"\n private:\n.*?(?=^\};)|^(?:struct|class) \w+;$", re.M | re.S)


def depth(text: str) -> int:
    """How many brackets are open after `text`."""
    plain = re.sub(r'"[^"]*"|//.*', "", text)
    return sum(plain.count(c) for c in "({") - sum(plain.count(c) for c in ")}")


def blocks(body: str) -> list[str]:
    """The parts of a namespace between blank lines outside of brackets."""
    found = [""]
    for part in re.split(r"\n\s*\n", body.strip("\n")):
        if depth(found[-1]) > 0:
            found[-1] += "\n\n" + part
        else:
            found.append(part)
    return [block.strip("\n") for block in found if block.strip()]


def name_of(block: str) -> str:
    """The first name that a block declares."""
    match = NAMED.search(block)
    return (match[1] or match[2]) if match else ""


def header_text(path: pathlib.Path) -> str:
    text = path.read_text(encoding="utf-8")
    title = text.split("\n", 1)[0].removeprefix("// ")
    body = text.split("namespace trainmon {\n", 1)[1].rsplit("\n}", 1)[0]
    out = [f"## trainmon/{path.name}\n", title + "\n"]
    for block in blocks(HIDDEN.sub("\n", body)):
        if name := name_of(block):
            out.append(f"### `{name}`\n")
        out.append(f"```cpp\n{block}\n```\n")
    return "\n".join(out)


def page(root: pathlib.Path) -> str:
    example = (root / "examples/embed_cpp/main.cpp").read_text(encoding="utf-8").rstrip()
    headers = sorted((root / "include/trainmon").glob("*.h"))
    return INTRO.format(example=example) + "\n" + "\n".join(map(header_text, headers))
