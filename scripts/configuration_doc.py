# Writes what follows from the table of configuration keys, the stored schema, docs/configuration.md and
# the types of keyword arguments: python scripts/configuration_doc.py
from __future__ import annotations

import json
import pathlib
import re

from trainmon import _core

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
MODULE = ROOT / "python" / "trainmon" / "config_types.py"
SCHEMA = ROOT / "python" / "trainmon" / "config.schema.json"
NAMED = ("kinds", "every", "budget", "out")  # watch() has a parameter for each

HEAD = """\
# Configuration

This page lists every key. `python scripts/configuration_doc.py` writes it from the table in `src/config/key_table.cpp`, and a
test compares the two. [What to record](recording.md#keys) says where you write keys.

Defaults and examples are JSON. In Python `null` is `None`, and a list of one element may be that element alone. The last column
says whether a key may change while a run goes on (`trainmon ctl set RUN KEY=VALUE`).
"""

COLUMNS = ("key", "type", "default", "what it does", "valid", "example", "while running")

TYPES = '''\
# The configuration keys as types, for editors and type checkers. scripts/configuration_doc.py writes
# this file from the table in src/config/key_table.cpp; a test compares the two.
from __future__ import annotations

from collections.abc import Collection
from os import PathLike
from typing import Literal, TypedDict


class OtherKeys(TypedDict, total=False):
    """The keyword arguments of trainmon.watch that have no parameter of their own."""

{other}

class ConfigKeys(OtherKeys, total=False):
    """Every key of a configuration."""

{named}'''


def rules() -> dict[str, dict]:
    """By key, what the JSON Schema says of its value."""
    properties = json.loads(_core.config_schema())["properties"]
    return {key["name"]: properties[key["name"]] for key in _core.config_keys()}


def types(rule: dict) -> list[str]:
    """The types that a rule allows, in JSON's names."""
    if "anyOf" in rule:
        return [name for one in rule["anyOf"] for name in types(one)]
    named = rule.get("type", "string")  # choices have no type
    return [named] if isinstance(named, str) else named


def words(rule: dict) -> str:
    names = {"string": "text", "boolean": "true or false"}
    if types(rule) == ["array"]:
        return {"text": "list of text", "integer": "list of integers"}[words(rule["items"])]
    return " or ".join(names.get(name, name) for name in types(rule))


def annotation(name: str, rule: dict) -> str:
    """With what config_json() takes in the place of a list or a path."""
    names = {"string": "str", "boolean": "bool", "integer": "int", "number": "float"}
    if types(rule) == ["array"]:
        element = annotation(name, {"type": types(rule["items"])})
        return f"{element} | Collection[{element}]"
    if "enum" in rule:
        return f"Literal[{', '.join(json.dumps(choice) for choice in rule['enum'])}]"
    python = [names.get(one, "None") for one in types(rule)]
    return " | ".join([*python, *(["PathLike[str]"] if name == "out" else [])])


def plain(text: str) -> str:
    """Nothing in it is markup of a table."""
    return re.sub(r"([|*<])", r"\\\1", text)


def page() -> str:
    """docs/configuration.md."""
    rule_of = rules()
    sections: dict[str, list[str]] = {}
    for key in _core.config_keys():
        cells = [
            f"`{key['name']}`",
            words(rule_of[key["name"]]),
            f"`{key['default']}`",
            plain(key["meaning"]),
            plain(key["expectation"]),
            f"`{key['example']}`",
            "no" if key["follower"] == "nobody" else "yes",
        ]
        sections.setdefault(key["subject"], []).append(row(cells))
    head = row(COLUMNS) + row(["---"] * len(COLUMNS))
    return HEAD + "".join(f"\n## {title}\n\n{head}{''.join(r)}" for title, r in sections.items())


def row(cells) -> str:
    return f"| {' | '.join(cells)} |\n"


def module() -> str:
    """python/trainmon/config_types.py."""
    fields = {"other": "", "named": ""}
    for name, rule in rules().items():
        field = f'    {name}: {annotation(name, rule)}\n    """{rule["description"]}"""\n'
        fields["named" if name in NAMED else "other"] += field
    return TYPES.format(**fields)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    MODULE.write_text(module(), encoding="utf-8")
    SCHEMA.write_text(_core.config_schema().strip() + "\n", encoding="utf-8")
