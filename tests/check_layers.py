"""Checks every #include, import and CMake dependency against the table of layers in ARCHITECTURE.md.

A folder uses only the folders its line names, each of a lower layer, and only the outside
libraries its line names. A public header counts as the folder whose types it declares, as the
table of headers says. Its CMake target depends on exactly the folders of src that its line
names. No Python module imports itself by way of others, wherever in it the import stands. Exits 1
and lists each violation otherwise.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
ROW = re.compile(r"^\| `([^`]+)` \| (\d+) \|([^|]*)\|([^|]*)\|", re.MULTILINE)
HEADER = re.compile(r"^\| `([^`/]+\.h)` \| `([^`]+)` \|", re.MULTILINE)
PUBLIC = "include/trainmon"


def read_table(text: str) -> dict[str, tuple[int, set[str], set[str]]]:
    def names(cell: str) -> set[str]:
        return set(re.findall(r"`([^`]+)`", cell))

    section = text.partition("\n## Layers\n")[2].partition("\n## ")[0]
    return {row[1]: (int(row[2]), names(row[3]), names(row[4])) for row in ROW.finditer(section)}


def read_headers(text: str) -> dict[str, str]:
    """Of each public header the folder whose types it declares."""
    section = text.partition("\n## Layers\n")[2].partition("\n## ")[0]
    return {f"{PUBLIC}/{row[1]}": row[2] for row in HEADER.finditer(section)}


def folder_of(path: str, table) -> str | None:
    matches = [folder for folder in table if path == folder or path.startswith(folder + "/")]
    return max(matches, key=len, default=None)


def used_paths(file: Path, root: Path) -> list[str]:
    """What a file includes or imports: paths under the root, or names of outside libraries."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        found = []
        for name in INCLUDE.findall(text):
            places = [file.parent / name, root / "src" / name, root / "include" / name]
            inside = next((p for p in places if p.is_file()), None)
            if inside is None and name.startswith("trainmon/"):
                inside = root / "include" / name  # generated: version.h
            found.append(str(inside.relative_to(root)) if inside else name)
        return found
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            if module.startswith("trainmon._core"):
                found.append("python/bindings/module.cpp")
            elif module.split(".")[0] == "trainmon":
                found.append("python/" + module.replace(".", "/"))
            else:
                found.append(module.replace(".", "/"))
    return found


def linked_folders(text: str) -> set[str]:
    """The folders of src whose libraries a CMakeLists.txt links."""
    text = re.sub(r"#[^\n]*", "", text)
    library = re.search(r"trainmon_library\(\s*\w+(.*?)\)", text, re.DOTALL)
    if library:
        return {f"src/{name}" for name in library[1].partition("DEPENDS")[2].split()}
    links = re.findall(r"target_link_libraries\((.*?)\)", text, re.DOTALL)
    names = set(re.findall(r"\btrainmon_(\w+)", " ".join(links))) - {"options"}
    return {f"src/{name}" for name in names}


def cmake_violations(root: Path, table) -> list[str]:
    found = []
    for folder, (_, uses, _) in table.items():
        file = root / folder / "CMakeLists.txt"
        if not file.exists():
            continue
        linked = linked_folders(file.read_text(encoding="utf-8"))
        named = {name for name in uses if name.startswith("src/")}
        for name in sorted(linked - named):
            found.append(f"{folder}/CMakeLists.txt: links {name}, which its line does not name")
        for name in sorted(named - linked):
            found.append(f"{folder}/CMakeLists.txt: does not link {name}, which its line names")
    return found


def python_imports(root: Path) -> dict[str, set[str]]:
    """Of each Python file the files of ours that it imports, in a function or under TYPE_CHECKING, too."""
    files = {str(f.relative_to(root)): f for f in sorted((root / "python").rglob("*.py"))}
    graph = {}
    for path, file in files.items():
        candidates = []
        for used in used_paths(file, root):
            names = [used, used.rpartition("/")[0]]  # a module, or a name in one
            candidates += [f"{name}{end}" for name in names for end in (".py", "/__init__.py")]
        graph[path] = {name for name in candidates if name in files and name != path}
        # A name of a package that is a module stands for that module alone.
        graph[path] -= {
            f"{used.rpartition('/')[0]}/__init__.py"
            for used in used_paths(file, root)
            if f"{used}.py" in files or f"{used}/__init__.py" in files
        }
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of files that import each other, each sorted."""

    def reached_from(start: str) -> set[str]:
        seen: set[str] = set()
        rest = [start]
        while rest:
            for name in graph[rest.pop()] - seen:
                seen.add(name)
                rest.append(name)
        return seen

    reached = {name: reached_from(name) for name in graph}
    tied = {name: {o for o in reached[name] if name in reached[o]} for name in graph}
    return sorted(sorted(group) for group in set(map(frozenset, tied.values())) if group)


def header_violations(root: Path, headers: dict[str, str], table) -> list[str]:
    """What the table of public headers does not name, names in vain, or names too low."""
    there = {str(f.relative_to(root)) for f in (root / PUBLIC).glob("*.h")}
    there |= {str(f.relative_to(root))[:-3] for f in (root / PUBLIC).glob("*.h.in")}
    found = [f"{name}: not in the table of headers" for name in sorted(there - set(headers))]
    found += [f"ARCHITECTURE.md: there is no {name}" for name in sorted(set(headers) - there)]
    for name, home in headers.items():
        if home not in table:
            found.append(f"ARCHITECTURE.md: {name} is of {home}, which is no folder of the table")
        for used in used_paths(root / name, root) if (root / name).is_file() else []:
            other = headers.get(used)
            if {home, other} <= set(table) and table[other][0] > table[home][0]:
                found.append(f"{name}: uses {used}, which is of {other}, above {home}")
    return found


def violations(root: Path) -> list[str]:
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table, headers = read_table(text), read_headers(text)
    outside = set().union(*(libraries for _, _, libraries in table.values()))
    found = [] if table else ["ARCHITECTURE.md: no table of layers"]
    for folder, (layer, uses, _) in table.items():
        for name in uses:
            if name not in table or table[name][0] >= layer:
                found.append(f"ARCHITECTURE.md: {folder} may not use {name} (no lower layer)")
    found += cmake_violations(root, table)
    found += header_violations(root, headers, table)
    files = [f for top in ("include", "src", "python") for f in sorted((root / top).rglob("*"))]
    for file in files:
        if file.suffix not in {".h", ".cpp", ".cu", ".cuh", ".py"}:
            continue
        path = str(file.relative_to(root))
        home = folder_of(path, table)
        if home is None:
            found.append(f"{path}: in no folder of the table")
            continue
        _, uses, libraries = table[home]
        for used in used_paths(file, root):
            target = folder_of(used, table)
            library = used.split("/")[0]
            if target not in {None, home} and target not in uses:
                found.append(f"{path}: uses {used}; {home} may use {', '.join(sorted(uses))}")
            elif home != PUBLIC and headers.get(used, home) not in {home, *uses}:
                found.append(f"{path}: uses {used}, which is of {headers[used]}; {home} may not")
            elif target is None and library in outside and library not in libraries:
                found.append(f"{path}: uses {used}, which {home} may not")
    found += [f"a circle: {', '.join(group)}" for group in circles(python_imports(root))]
    return found


def self_test() -> None:
    """Plants violations in a small tree and expects exactly those."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        files = {
            "ARCHITECTURE.md": "\n## Layers\n"
            "| `include/trainmon` | 0 | | | x |\n"
            "| `src/base` | 1 | `include/trainmon` | | x |\n"
            "| `src/a` | 2 | `src/base` | `json` | x |\n"
            "| `src/b` | 2 | `src/a` | | x |\n"
            "| `python/bindings` | 3 | | | x |\n"
            "| `python/trainmon/torch` | 4 | `python/bindings` | `torch` | x |\n"
            "| `python/trainmon` | 5 | `python/trainmon/torch` | | x |\n"
            "| `x.h` | `src/base` | x |\n"
            "| `top.h` | `src/a` | x |\n"
            "| `gone.h` | `src/gone` | x |\n",
            "include/trainmon/x.h": '#include "base/b.h"\n#include "trainmon/top.h"\n',
            "include/trainmon/top.h": '#include "trainmon/x.h"\n',
            "include/trainmon/made.h.in": "",
            "src/base/b.h": '#include "trainmon/x.h"\n#include <vector>\n#include "trainmon/top.h"\n',
            "src/base/b.cpp": "#include <json/json.h>\n",
            "src/a/a.h": '#include "base/b.h"\n#include <json/json.h>\n',
            "src/b/b.cpp": '#include "trainmon/x.h"\n',
            "src/stray.cpp": "",
            "src/a/CMakeLists.txt": "trainmon_library(a\n  SOURCES a.cpp DEPENDS base)  # src/a\n",
            "src/b/CMakeLists.txt": "trainmon_library(b SOURCES b.cpp\n  DEPENDS base)\n",
            "python/bindings/module.cpp": "",
            "python/trainmon/a.py": "from trainmon import _core, torch\nimport torch.nn\n"
            "from trainmon.torch.b import f\n",
            "python/trainmon/torch/b.py": "import torch\nfrom trainmon import _core\n"
            "def f():\n    from trainmon.a import x\n",
            "python/trainmon/torch/__init__.py": "",
            "python/trainmon/torch/c.py": "def f():\n    from trainmon.torch import d\n",
            "python/trainmon/torch/d.py": "from trainmon.torch.e import f\n",
            "python/trainmon/torch/e.py": "import trainmon.torch.c\nfrom trainmon.torch import b\n",
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        expected = [
            "ARCHITECTURE.md: include/trainmon/gone.h is of src/gone, which is no folder of the table",
            "ARCHITECTURE.md: src/b may not use src/a (no lower layer)",
            "ARCHITECTURE.md: there is no include/trainmon/gone.h",
            "a circle: python/trainmon/a.py, python/trainmon/torch/b.py",
            "a circle: python/trainmon/torch/c.py, python/trainmon/torch/d.py, "
            "python/trainmon/torch/e.py",
            "include/trainmon/made.h: not in the table of headers",
            "include/trainmon/x.h: uses include/trainmon/top.h, which is of src/a, above src/base",
            "include/trainmon/x.h: uses src/base/b.h; include/trainmon may use ",
            "python/trainmon/a.py: uses python/bindings/module.cpp; "
            "python/trainmon may use python/trainmon/torch",
            "python/trainmon/a.py: uses torch/nn, which python/trainmon may not",
            "python/trainmon/torch/b.py: uses python/trainmon/a/x; "
            "python/trainmon/torch may use python/bindings",
            "src/b/CMakeLists.txt: does not link src/a, which its line names",
            "src/b/CMakeLists.txt: links src/base, which its line does not name",
            "src/b/b.cpp: uses include/trainmon/x.h; src/b may use src/a",
            "src/base/b.cpp: uses json/json.h, which src/base may not",
            "src/base/b.h: uses include/trainmon/top.h, which is of src/a; src/base may not",
            "src/stray.cpp: in no folder of the table",
        ]
        assert sorted(violations(root)) == expected, sorted(violations(root))


if __name__ == "__main__":
    self_test()
    problems = violations(Path(__file__).resolve().parent.parent)
    print("\n".join(problems) or "layers: ok")
    sys.exit(bool(problems))
