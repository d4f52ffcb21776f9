"""The C++ reference: the declarations of the headers in include/trainmon, with their comments."""

from __future__ import annotations

import inspect
import pathlib
import re
from typing import NamedTuple

INTRO = """\
# C++ reference

This page is generated from the headers in `include/trainmon`. The comment above a declaration gives its units, threads and errors. Everything is
in the namespace `trainmon`.

## A program that embeds the core

`make test` builds it and runs it.

```cpp
{example}
```

## The other examples

They are tests, which `make test` builds and runs: `EXPECT_EQ(a, b)` says what comes out. `Scratch` makes a folder that is removed afterwards.
They share these two classes.

```cpp
{shared}
```
"""

EXAMPLE = re.compile(
    r"^// example (\S+\.h): ([^\n]+)\nTEST\(\w+, \w+\) \{\n(.*?)^\}\n", re.M | re.S
)

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


def emptied(text: str, opens: str, closes: str) -> str:
    """`text` without what stands between its brackets of this sort."""
    found, level = "", 0
    for c in text:
        level -= c == closes
        found += c if level == 0 else ""
        level += c == opens
    return found


def names(block: str) -> dict[str, bool]:
    """The types, constants and functions that a block declares, members too; True for what is called."""
    plain = emptied(re.sub(r'"(?:\\.|[^"\\])*"|//.*', "", block), "(", ")")
    found: dict[str, bool] = {}
    for match in re.finditer(r"^(?:struct|class) (\w+)[^;{]*\{(.*?)^\};", plain, re.M | re.S):
        called = re.findall(r"(?<=[ &*])(\w+)\(\)", emptied(match[2], "{", "}"))
        found |= {match[1]: False}
        found |= {n: True for n in called if n != match[1] and not n.endswith("_")}
    outside = emptied(plain, "{", "}")
    types = r"^(?:enum class|namespace|using) (\w+)|^inline constexpr [^=]*?(\w+) ="
    found |= {a or b: False for a, b in re.findall(types, outside, re.M)}
    return found | dict.fromkeys(re.findall(r"^\w[^=;{}]*?(\w+)\(\)", outside, re.M), True)


class Example(NamedTuple):
    header: str
    title: str
    code: str

    def shows(self, name: str, called: bool) -> bool:
        code = re.sub(r'"(?:\\.|[^"\\])*"|//.*', "", self.code)
        return bool(re.search(rf"\b{name}\b" + (r"\(" if called else ""), code))

    def link(self) -> str:
        title = f"Example: {self.title}"
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        return f"[{self.title}](#{slug})"


def examples(root: pathlib.Path) -> list[Example]:
    files = sorted((root / "tests/cpp/reference").glob("*_test.cpp"))
    found = [EXAMPLE.findall(file.read_text(encoding="utf-8")) for file in files]
    return [
        Example(header, title, inspect.cleandoc("\n" + code))
        for file in found
        for header, title, code in file
    ]


def headers(root: pathlib.Path) -> dict[pathlib.Path, list[str]]:
    """Of each public header what it declares, in blocks."""
    found = {}
    for path in sorted((root / "include/trainmon").glob("*.h")):
        text = path.read_text(encoding="utf-8")
        body = text.split("namespace trainmon {\n", 1)[1].rsplit("\n}", 1)[0]
        found[path] = blocks(HIDDEN.sub("\n", body))
    return found


def header_text(path: pathlib.Path, declared: list[str], shown: list[Example]) -> str:
    title = path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("// ")
    out = [f"## trainmon/{path.name}\n", title + "\n"]
    own_first = sorted(shown, key=lambda example: example.header != path.name)
    for block in declared:
        if name := name_of(block):
            out.append(f"### `{name}`\n")
        out.append(f"```cpp\n{block}\n```\n")
        uses = [e for n, called in names(block).items() for e in own_first if e.shows(n, called)][
            :1
        ]
        out += [f"Example: {example.link()}\n" for example in uses]
    for example in shown:
        if example.header == path.name:
            out.append(f"### Example: {example.title}\n\n```cpp\n{example.code}\n```\n")
    return "\n".join(out)


def page(root: pathlib.Path) -> str:
    example = (root / "examples/embed_cpp/main.cpp").read_text(encoding="utf-8").rstrip()
    shared = (root / "tests/cpp/reference/example.h").read_text(encoding="utf-8")
    shared = shared.split("namespace trainmon::testing {\n", 1)[1].rsplit("\n}", 1)[0].strip()
    shown = examples(root)
    texts = [header_text(path, declared, shown) for path, declared in headers(root).items()]
    return INTRO.format(example=example, shared=shared) + "\n" + "\n".join(texts)
