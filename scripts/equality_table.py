# Writes the equality table into docs/frameworks.md: python scripts/equality_table.py [FOLDER ...]
"""From what the tests left in build/equality (or the folders given): one JSON file per row, written by
tests/python/equality_compare.py only where every value was right. A row that must be there and is not
is named, and nothing is written.
"""

from __future__ import annotations

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATH = ROOT / "docs" / "frameworks.md"
BEGIN, END = "<!-- equality table: begin -->", "<!-- equality table: end -->"
ORDER = (
    "plain", "ddp", "fsdp1", "fsdp1_flat", "fsdp2", "fsdp2_bf16", "tensor_parallel",
    "zero0", "zero1", "zero2", "zero3", "megatron", "megatron_distributed",
    "trainer", "accelerate", "lightning",
)  # fmt: skip
KINDS = (
    "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq",
)  # fmt: skip


def rows_in(folders: list[pathlib.Path]) -> dict:
    found: dict = {}
    for folder in folders:
        for file in sorted(folder.glob("*.json")):
            row = json.loads(file.read_text())
            found[row["name"]] = row
    if missing := [name for name in ORDER if name not in found]:
        raise SystemExit(f"no result of {', '.join(missing)}: run their tests first")
    families = [name.split("_")[0].rstrip("0123456789") for name in ORDER]

    def place(name: str) -> tuple:
        """Beside what it is a variant of; what is of no such family comes last."""
        if name in ORDER:
            return ORDER.index(name), 0, name
        family = name.split("_")[0].rstrip("0123456789")
        known = [i for i, one in enumerate(ORDER) if name.startswith(one + "_")]
        known = known or [i for i, one in enumerate(families) if one == family]
        return (known[-1] if known else len(ORDER)), 1, name

    return {name: found[name] for name in sorted(found, key=place)}


def table(rows: dict) -> str:
    notes: list[str] = []
    lines = [
        "| | " + " | ".join(f"`{kind}`" for kind in KINDS) + " |",
        "| --- " * (len(KINDS) + 1) + "|",
    ]
    for row in rows.values():
        cells = [row["title"]]
        for kind in KINDS:
            cell = row["cells"][kind]
            if "blank" in cell:
                if cell["blank"] not in notes:
                    notes.append(cell["blank"])
                cells.append(f"absent [{notes.index(cell['blank']) + 1}]")
            else:
                error = "0" if not cell["error"] else f"{cell['error']:.0e}"
                cells.append(f"{cell['compared']}/{cell['expected']} {error}")
        lines.append("| " + " | ".join(cells) + " |")
    for number, note in enumerate(notes, 1):
        lines += ["", f"[{number}] {note}"]
    limits = {row["precision"]: row["limits"] for row in rows.values()}
    lines += [
        "",
        "Allowed by precision are these errors, and for `zeros` these shares of the elements:",
        "",
    ]
    for precision, limit in sorted(limits.items()):
        lines.append(f"- {precision}: {limit['error']:g} and {limit['zeros']:g}")
    return "\n".join(lines)


def main() -> None:
    folders = [pathlib.Path(folder) for folder in sys.argv[1:]] or [ROOT / "build" / "equality"]
    made = table(rows_in(folders))
    text = PATH.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PATH.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    main()
