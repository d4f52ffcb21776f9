"""stage.py FOLDER: the pages of the documentation site, as Markdown for Sphinx.

Documents of the repository are copied, with links between them turned to the pages; the command line,
the Python and the C++ reference are written anew from `--help`, docstrings and headers.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys

import cpp_reference
import python_reference

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Pages that are no document of docs/.
ELSEWHERE = {
    "index": "README.md",
    "chinese": "README.zh.md",
    "architecture": "ARCHITECTURE.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": "SECURITY.md",
}
# The pages by question; "title <page>" where the page's own title is too long or says something else.
NAVIGATION = {
    "Begin": ["quick_start", "gallery", "recording", "questions", "examples", "中文说明 <chinese>"],
    "One question each": [
        "first_bad",
        "hung",
        "detection",
        "report",
        "cost",
        "numbers",
        "Two runs differ <compare>",
        "from_msprobe",
        "from_wandb",
        "Send to a tracker <push>",
    ],
    "Frameworks": [
        "What is seen under each <frameworks>",
        "mindspore",
        "DeepSpeed and ColossalAI <deepspeed>",
        "Add a framework <adapters>",
    ],
    "Reference": [
        "configuration",
        "command_line",
        "python",
        "cpp",
        "statistics",
        "formats",
        "compatibility",
        "scale",
    ],
    "What has run": [
        "status",
        "What is promised <reliability>",
        "measurements",
        "measurements-history",
        "changelog",
    ],
    "Work on trainmon": ["architecture", "extending", "contributing", "security"],
}

LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.M | re.S)


def sources() -> dict[pathlib.Path, str]:
    """Every document, and the page that shows it."""
    pages = {path: path.stem for path in (ROOT / "docs").glob("*.md")}
    return pages | {ROOT / name: page for page, name in ELSEWHERE.items()}


def linked(text: str, document: pathlib.Path, pages: dict[pathlib.Path, str]) -> str:
    """`text` with links to documents as links to pages. Of other files only the name is left: a site
    has no repository beside it."""

    def replaced(match: re.Match) -> str:
        picture, label, target = match.groups()
        file, _, anchor = target.partition("#")
        if picture or not file or re.match(r"[a-z]+:", file):
            return match[0].replace("](docs/", "](") if picture else match[0]
        path = pathlib.Path(os.path.normpath(document.parent / file))
        if path == ROOT / "examples":
            return f"[{label}](examples.md)"
        if path == ROOT / "examples/embed_cpp":
            return f"[{label}](cpp.md)"
        if path in pages:
            return f"[{label}]({pages[path]}.md{'#' + anchor if anchor else ''})"
        return f"{label} (`{path.relative_to(ROOT)}`)"

    parts = CODE.split(text)
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def help_of(*command: str) -> str:
    tool = ROOT / ".venv/bin/trainmon"
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        [tool, *command, "--help"], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.rstrip()


def commands_in(text: str) -> list[str]:
    """Those of a command, or the groups of the first page."""
    groups = "Subcommands|What went wrong|Look at a run|Make other files|Set up and control"
    listed = re.findall(rf"^(?:{groups}):\n(.*?)(?:\n\n|\Z)", text, re.M | re.S)
    return [name for group in listed for name in re.findall(r"^  (\S+)", group, re.M)]


def command_line() -> str:
    """The help of every command, one section each."""
    out = ["# Command line\n", "This page is generated from `--help`.\n"]

    def section(level: int, *command: str) -> None:
        text = help_of(*command)
        out.append(f"{'#' * level} `{' '.join(('trainmon', *command))}`\n\n```text\n{text}\n```\n")
        for name in commands_in(text):
            section(min(level + 1, 3), *command, name)

    section(2)
    return "\n".join(out)


def examples() -> str:
    """The first line of each script of examples/ and its docstring."""
    out = ["# Examples\n", "Each script stands in `examples` of the repository.\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if text := ast.get_docstring(ast.parse(source)):
            first = re.match(r"# (.*)", source)
            said = [
                f"## {path.name}",
                *([first[1]] if first else []),
                python_reference.markdown(text),
            ]
            out.append("\n\n".join(said))
    return "\n".join(out)


def index(text: str) -> str:
    for title, names in NAVIGATION.items():
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"
    return text


def main() -> None:
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True)
    pages = sources()
    for document, page in pages.items():
        text = linked(document.read_text(encoding="utf-8"), document, pages)
        if page == "index":
            text = index(text)
        (target / f"{page}.md").write_text(text, encoding="utf-8")
    (target / "pictures").mkdir()
    for pattern in ("*.svg", "pictures/*.png"):
        for picture in (ROOT / "docs").glob(pattern):
            (target / picture.relative_to(ROOT / "docs")).write_bytes(picture.read_bytes())
    for page, text in {
        "command_line": command_line(),
        "examples": examples(),
        "python": python_reference.page(),
        "cpp": cpp_reference.page(ROOT),
    }.items():
        (target / f"{page}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
