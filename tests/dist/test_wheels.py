"""The files in dist/: tags that are true, everything inside, nothing asked of the machine but glibc."""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from packaging.tags import Tag
from wheel_case import MACHINE_LIBRARIES, demands, too_new

ROOT = Path(__file__).resolve().parents[2]
OLDEST_GLIBC = (2, 28)


def test_one_wheel_per_python_and_machine(wheels):
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {str(w.version) for w in wheels} == {stated[1]}
    assert sorted((w.python, w.abi, w.machine) for w in wheels) == [
        ("cp310", "cp310", "aarch64"),
        ("cp310", "cp310", "x86_64"),
        ("cp311", "cp311", "aarch64"),
        ("cp311", "cp311", "x86_64"),
        ("cp312", "abi3", "aarch64"),
        ("cp312", "abi3", "x86_64"),
    ]


def test_platform_tag_is_old_enough_and_true(wheel):
    assert wheel.glibc <= OLDEST_GLIBC
    binaries = wheel.elf_files()
    assert len(binaries) == 2  # the extension, the command line
    for name, data in binaries.items():
        found = demands(data)
        assert found["machine"] == wheel.machine, name
        assert too_new(found, wheel.glibc) == set(), name
        assert {lib for lib in found["libraries"] if not MACHINE_LIBRARIES.match(lib)} == set(), (
            name
        )


def test_the_check_of_the_platform_tag_sees_a_binary_of_this_machine(tmp_path):
    source = tmp_path / "new.cpp"
    source.write_text("#include <iostream>\nint main() { std::cout << 1; }\n")
    subprocess.run(["c++", source, "-o", tmp_path / "new"], check=True)
    found = demands((tmp_path / "new").read_bytes())
    assert any(name.startswith("GLIBCXX") for name in too_new(found, OLDEST_GLIBC))
    assert not all(MACHINE_LIBRARIES.match(library) for library in found["libraries"])


def test_both_programs_carry_the_kernels_and_link_nothing_of_cuda(wheel):
    for name, data in wheel.elf_files().items():
        assert data.count(b"\x50\xed\x55\xba") >= 1, name  # where a fat binary begins
        assert not [lib for lib in demands(data)["libraries"] if "cuda" in lib], name


def test_the_extension_exports_its_entry_and_takes_only_python_and_glibc(wheel):
    (data,) = [d for name, d in wheel.elf_files().items() if name.startswith("trainmon/_core.")]
    found = demands(data)
    assert found["exported"] == {"PyInit__core"}
    assert {n for n in found["unversioned"] if not re.match(r"_?Py[A-Z_]", n)} == set()


def test_abi3_wheels_keep_to_the_stable_abi(wheels):
    stable = [w.path for w in wheels if w.abi == "abi3"]
    assert len(stable) == 2
    for path in stable:
        audit = subprocess.run(
            [Path(sys.executable).with_name("abi3audit"), "--strict", "--report", path],
            capture_output=True,
            text=True,
        )
        assert audit.returncode == 0, audit.stdout + audit.stderr
        (report,) = json.loads(audit.stdout)["specs"].values()
        (extension,) = report["wheel"]
        assert extension["result"]["is_abi3_baseline_compatible"], extension
        assert extension["result"]["baseline"] == "3.12"


def test_everything_is_inside(wheel):
    files = wheel.files()
    info = f"trainmon-{wheel.version}.dist-info"
    suffix = {"abi3": "abi3"}.get(wheel.abi, f"cpython-3{wheel.minor()}-{wheel.machine}-linux-gnu")
    tracked = subprocess.run(
        ["git", "ls-files", "python/trainmon"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    expected = {name.removeprefix("python/") for name in tracked}
    assert len(expected) > 40 and "trainmon/config.schema.json" in expected
    expected |= {f"trainmon/_core.{suffix}.so", "trainmon/_core.pyi", "trainmon/py.typed"}
    expected |= {f"{info}/licenses/LICENSE", f"{info}/licenses/THIRD_PARTY_LICENSES"}
    expected |= {f"trainmon-{wheel.version}.data/scripts/trainmon"}
    assert expected - set(files) == set()
    assert not [n for n in files if n.endswith((".a", ".cpp", ".h", ".o", ".pyc"))]
    assert "def check_config(" in files["trainmon/_core.pyi"].decode()
    stated = re.findall(r"^Tag: (.+)$", files[f"{info}/WHEEL"].decode(), re.MULTILINE)
    assert stated == [str(Tag(wheel.python, wheel.abi, wheel.platform))]
    assert "Root-Is-Purelib: false" in files[f"{info}/WHEEL"].decode()


def test_licences_name_everything_that_is_compiled_in(wheel):
    info = f"trainmon-{wheel.version}.dist-info"
    text = wheel.files()[f"{info}/licenses/THIRD_PARTY_LICENSES"].decode()
    titles = re.findall(r"^=+\n(.+)\n=+\n", text, re.MULTILINE)
    works = (
        "zstd", "SQLite", "nlohmann-json", "CLI11", "nanobind", "robin-map", "libc++", "uPlot", "uFuzzy",
    )  # fmt: skip
    for work in works:
        assert any(re.search(rf"(^|[ ,]){re.escape(work)}( |,)", title) for title in titles), work


def test_the_sdist_builds_and_holds_no_tests(wheels):
    (path,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "THIRD_PARTY_LICENSES", "CMakeLists.txt", "cmake/zig.cmake"} <= names
    assert not [n for n in names if n.startswith(("tests/", "scripts/", "build/", ".venv"))]


def test_completion_files_are_inside_once_the_command_makes_them(wheel):
    inside = {name.split(".data/data/")[-1] for name in wheel.files() if ".data/data/" in name}
    made = (ROOT / "src/cli/completion.cpp").exists()
    expected = {"share/bash-completion/completions/trainmon", "share/zsh/site-functions/_trainmon"}
    assert inside == (expected if made else set())
