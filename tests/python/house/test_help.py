"""What --help says is as long as a sentence of a document may be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import command_line as program

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import check_prose


def help_of(*command):
    return subprocess.run(
        [program(), *command, "--help"], capture_output=True, text=True, check=True
    ).stdout


COMMANDS = re.findall(r"^  ([a-z][a-z-]*) +\S", help_of(), re.MULTILINE)


def test_commands_are_found():
    assert {"diagnose", "show", "plot", "push", "report"} <= set(COMMANDS)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_sentences_are_short(command):
    # A paragraph, an option and a line of an indented list are blocks; usage is no sentence.
    blocks = re.split(r"\n\s*\n|\n(?= {1,4}\S)", help_of(*command.split()))
    blocks = [block for block in blocks if not block.startswith("usage:")]
    found = [s for block in blocks for s in check_prose.END.split(" ".join(block.split()))]
    long = [s for s in found if check_prose.words(s) > check_prose.LONGEST]
    assert not long
