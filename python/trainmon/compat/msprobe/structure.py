# module_struct.json: what goes into and comes out of each module, seen in one step.
from __future__ import annotations

import json
import os
from pathlib import Path

SIDES = (("input", "actv"), ("output", "actv"), ("input", "actv_grad"), ("output", "actv_grad"))
NOTHING = "<class 'NoneType'>"


def structure(tensors: dict[str, list[tuple]]) -> dict:
    """{"0:fc": {"input": {"config": "tuple[1]", "0": "size=(5, 4), dtype=torch.float32"}, ...}}

    `tensors`: per kind (tag, statistics, shape, dtype). A tensor without a gradient is NoneType
    there, as torch gives it."""
    found: dict[str, dict] = {}
    for kind in ("actv", "actv_grad"):
        for tag, _, shape, dtype in tensors.get(kind, ()):
            name, _, element = tag.split("/")[0].rsplit(":", 1)[0].rpartition(".")
            side, _, index = element.partition("_")
            sides = found.setdefault(
                name, {f"{s}{'_grad' if k != 'actv' else ''}": {} for s, k in SIDES}
            )
            key = side if kind == "actv" else f"{side}_grad"
            text = f"size={_tuple(shape)}, dtype=torch.{dtype}"
            sides[key].setdefault(index, text)
    return {name: {key: _side(key, sides) for key in sides} for name, sides in found.items()}


def _side(key: str, sides: dict) -> dict:
    entries = dict(sides[key])
    if key.endswith("_grad"):
        for index in sides[key.removesuffix("_grad")]:
            entries.setdefault(index, NOTHING)
    if key == "output" and list(entries) == [""]:
        return {"config": "tensor", "tensor": entries[""]}
    numbered = {index or "0": entries[index] for index in sorted(entries, key=_number)}
    size = max(map(int, numbered), default=-1) + 1
    return {"config": f"tuple[{size}]", **numbered}


def _number(index: str) -> int:
    return int(index or 0)


def _tuple(shape: list[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def write(folder: Path, found: dict) -> str:
    """The path of the file, which is whole and on the disk when this returns."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    path = folder / "module_struct.json"
    temporary = folder / "module_struct.json.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, 0o640)
    os.replace(temporary, path)
    return str(path)
