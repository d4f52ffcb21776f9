"""The Python reference, from the docstrings of `trainmon.__all__` and of the classes these return."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys

import trainmon

INTRO = """\
# Python reference

This page is generated from the docstrings. A test runs every example. The examples read `trainmon_runs/local`, the run of the
[quick start](quick_start.md). Each begins with `import torch, trainmon`. Those of methods of `Watch` and `GradProbe` go on after the step in the
example of their class. They have its `model`, `optimizer`, and `mon` or `probe`.
"""

PARAMETER = re.compile(r"(\S(?:.*?\S)?)\s{2,}(\S.*)")


def escaped(text: str) -> str:
    """Markdown that shows `text` as it is; what stands between backticks stays."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*<>\[\]|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def parameters(lines: list[str]) -> list[str] | None:
    """The lines of an aligned list of parameters as a Markdown list; None for other text. Raises
    ValueError where a list has a line that is not aligned."""
    if not PARAMETER.fullmatch(lines[0]):
        return None
    found = []
    for line in lines:
        match = PARAMETER.fullmatch(line)
        if match and not line.startswith(" "):
            names = ", ".join(f"`{name.strip()}`" for name in match[1].split(","))
            found.append(f"- {names}: {escaped(match[2])}")
        elif line.startswith("    "):
            found[-1] += " " + escaped(line.strip())
        else:
            raise ValueError(f"a list of parameters has a line without two blanks: {line!r}")
    return found


def markdown(docstring: str) -> str:
    """A docstring of this project's form: paragraphs, aligned lists of parameters, indented text
    and examples."""
    out = []
    for block in re.split(r"\n\s*\n", docstring.strip("\n")):
        lines = block.splitlines()
        if lines[0].startswith(">>>"):
            out.append("```pycon\n" + block + "\n```")
        elif all(line.startswith("    ") for line in lines):
            out.append("```\n" + inspect.cleandoc("\n" + block) + "\n```")
        else:
            listed = parameters(lines)
            out.append("\n".join(listed) if listed else escaped(" ".join(map(str.strip, lines))))
    return "\n\n".join(out) + "\n"


def documented(value) -> str:
    text = inspect.getdoc(value)
    return markdown(text) if text else ""


def signature(name: str, value) -> str:
    """One argument per line where they do not fit in one."""
    signature = inspect.signature(value)
    arguments = [re.sub(r": '([^']*)'", r": \1", str(one)) for one in signature.parameters.values()]
    kinds = [one.kind for one in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        arguments.insert(kinds.index(inspect.Parameter.POSITIONAL_ONLY) + 1, "/")
    arguments = [one for one in arguments if one != "self"]
    if arguments[:1] == ["/"]:
        del arguments[0]
    result = signature.return_annotation
    back = "" if result is inspect.Signature.empty else f" -> {result}"
    line = f"{name}({', '.join(arguments)}){back}"
    if len(line) > 90:
        line = f"{name}(\n    " + ",\n    ".join(arguments) + f",\n){back}"
    return f"```python\n{line}\n```\n"


def fields(cls) -> str:
    """The fields of a dataclass or named tuple, as the source has them with their comments."""
    lines = inspect.getsource(cls).splitlines()
    kept = [line for line in lines if re.match(r"    \w+: ", line)]
    return "```python\n" + "\n".join(line.strip() for line in kept) + "\n```\n" if kept else ""


def has_fields(cls) -> bool:
    return dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")


def members(cls):
    """Public methods and properties that the class itself defines, in the order of the source."""
    for name, member in vars(cls).items():
        if name.startswith("_") or not documented(getattr(cls, name)):
            continue
        if isinstance(member, property):
            yield name, f"```python\n{name}\n```\n", documented(member)
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            yield name, signature(name, getattr(cls, name)), documented(member)


def class_text(name: str, cls) -> str:
    out = [f"## {name}\n"]
    base = cls.__mro__[1]
    if base.__module__.startswith("trainmon"):
        out.append(f"A `{base.__name__}` with more fields.\n")
    if inspect.getdoc(cls) and cls.__doc__ and not cls.__doc__.startswith(f"{name}("):
        out.append(markdown(inspect.cleandoc(cls.__doc__)))
    if has_fields(cls):
        out.append(fields(cls))
    for member, head, text in members(cls):
        out += [f"### {name}.{member}\n", head, text]
    return "\n".join(out)


def returned(value, seen: dict) -> None:
    """Collects the classes of this package that the annotation of a result names, and those that
    their fields and bases name."""
    module = sys.modules[value.__module__]
    if inspect.isclass(value):
        texts = [str(one) for one in vars(value).get("__annotations__", {}).values()]
        texts += [base.__name__ for base in value.__mro__[1:]]
    else:
        texts = [str(inspect.signature(value).return_annotation)]
    for name in re.findall(r"[A-Z]\w+", " ".join(texts)):
        cls = getattr(module, name, None)
        if inspect.isclass(cls) and cls.__module__.startswith("trainmon") and name not in seen:
            seen[name] = cls
            returned(cls, seen)


def results() -> dict:
    """The classes of what public functions return, by name."""
    found: dict = {}
    for name in trainmon.__all__:
        if inspect.isfunction(value := getattr(trainmon, name)):
            returned(value, found)
    return found


def classes() -> list:
    """Every class of the page."""
    public = [getattr(trainmon, name) for name in trainmon.__all__]
    return list(dict.fromkeys([*filter(inspect.isclass, public), *results().values()]))


def page() -> str:
    out = [INTRO]
    for name in trainmon.__all__:
        value = getattr(trainmon, name)
        if inspect.isfunction(value):
            out += [f"## {name}\n", signature(f"trainmon.{name}", value), documented(value)]
        elif inspect.isclass(value):
            head = [] if issubclass(value, Exception) else [signature(f"trainmon.{name}", value)]
            title, rest = class_text(name, value).split("\n", 1)
            out += [title, "", *head, rest]
        else:
            out += [f"## `{name}`\n", f"A `{type(value).__name__}`: `{value}`.\n"]
    out += ["## What they return\n", "The classes of results, below.\n"]
    out += [
        class_text(name, cls) for name, cls in results().items() if name not in trainmon.__all__
    ]
    return "\n".join(out)
