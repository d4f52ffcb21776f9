"""The completion scripts in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from launch import command_line as program


def script(shell):
    return subprocess.run(
        [program(), "completion", shell], capture_output=True, text=True, check=True
    ).stdout


def in_bash(words, cwd=None):
    quoted = " ".join(f"'{word}'" for word in words)
    text = (
        f"{script('bash')}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words) - 1}\n"
        "_trainmon trainmon\nprintf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-euc", text], capture_output=True, text=True, cwd=cwd, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash(tmp_path):
    assert in_bash(["trainmon", "to"]) == {"top"}
    assert in_bash(["trainmon", "ta"]) == {"tail"}
    assert in_bash(["trainmon", "config", ""]) == {"init", "explain", "check", "schema"}
    assert in_bash(["trainmon", "ctl", "st"]) == {"status"}
    assert in_bash(["trainmon", "top", "--st"]) == {"--stat", "--steps"}
    assert in_bash(["trainmon", "top", "runs/top", "--json", "--sm"]) == {"--smallest"}
    assert "--help" in in_bash(["trainmon", "config", "check", "--"])
    assert in_bash(["trainmon", "--no"]) == {"--no-color"}
    (tmp_path / "my run").mkdir()
    (tmp_path / "myrun").mkdir()
    assert "myrun" in in_bash(["trainmon", "top", "my"], tmp_path)


class Zsh:
    """An interactive zsh that has loaded the completion."""

    def __init__(self, tmp_path):
        home = tmp_path / "home"
        home.mkdir()
        functions = tmp_path / "functions"
        functions.mkdir()
        (functions / "_trainmon").write_text(script("zsh"))
        (home / ".zshrc").write_text(
            f"PS1='> '\nfpath=({functions} $fpath)\nautoload -U compinit\n"
            f"compinit -u -d {tmp_path}/dump\nunsetopt beep zle_bracketed_paste\nLISTMAX=1000\n"
        )
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["zsh", "-d", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={
                "HOME": str(home),
                "ZDOTDIR": str(home),
                "TERM": "dumb",
                "COLUMNS": "200",
                "PATH": f"{Path(program()).parent}:{os.environ['PATH']}",
            },
        )
        os.close(slave)
        self.read_until("> ")

    def read_until(self, text):
        got = ""
        end = time.monotonic() + 30
        while text not in got:
            assert time.monotonic() < end, got
            if select.select([self.master], [], [], 0.2)[0]:
                got += os.read(self.master, 65536).decode(errors="replace")
        return got

    def press(self, keys, expected):
        os.write(self.master, keys.encode())
        got = self.read_until(expected)
        os.write(self.master, b"\x15")  # the line is given up
        return got

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: NOT TESTED")
def test_zsh(tmp_path):
    shell = Zsh(tmp_path)
    try:
        shell.press("trainmon to\t", "top")
        shell.press("trainmon ta\t", "tail")
        shell.press("trainmon config ex\t", "explain")
        shell.press("trainmon top --sm\t", "--smallest")
        shell.press("trainmon ctl stat\t", "status")
    finally:
        shell.end()
