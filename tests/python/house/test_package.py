"""The installed package: what import costs, one version, everything shipped, honest configuring."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainmon

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(trainmon.__file__).parent
FRAMEWORKS = {"torch", "mindspore", "numpy", "pandas", "transformers"}


def run(*command, **options):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, **options
    )


def test_import_brings_no_framework():
    code = "import json, sys, trainmon; print(json.dumps(sorted(sys.modules)))"
    modules = json.loads(run(sys.executable, "-c", code).stdout)
    assert "trainmon" in modules
    assert FRAMEWORKS.isdisjoint(modules)


def test_every_public_name_exists():
    assert {"watch", "read", "tensor_stats", "first_bad", "top", "ConfigError"} <= set(
        trainmon.__all__
    )
    for name in trainmon.__all__:
        assert getattr(trainmon, name) is not None


def test_editors_find_every_public_name_where_it_is():
    tree = ast.parse((ROOT / "python" / "trainmon" / "__init__.py").read_text())
    imports = [
        n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module != "__future__"
    ]
    shown = {alias.asname: node.module for node in imports for alias in node.names}
    assert shown == trainmon._HOME


def test_one_version():
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    version = stated.group(1)
    assert trainmon.__version__ == version
    assert importlib.metadata.version("trainmon") == version
    assert version in run(command_line(), "--version").stdout
    listed = run("git", "ls-files", "--", "*.py", "*.cpp", "*.h", "*.cmake", "*.txt", cwd=ROOT)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    assert len(files) > 50
    again = [f for f in files if re.search(rf'"{re.escape(version)}"', f.read_text())]
    assert again == []


def command_line() -> Path:
    return Path(sys.executable).with_name("trainmon")


def test_wheel_ships_everything():
    for name in ("py.typed", "_core.pyi", "config.schema.json"):
        assert (PACKAGE / name).is_file(), name
    assert "def check_config(" in (PACKAGE / "_core.pyi").read_text()
    assert command_line().read_bytes()[:4] == b"\x7fELF"
    shipped = {str(file) for file in importlib.metadata.files("trainmon")}
    assert not [name for name in shipped if name.endswith((".a", ".cpp", ".h"))]


def test_core_links_neither_torch_nor_python():
    needed = run("readelf", "-d", command_line()).stdout
    assert "NEEDED" in needed
    assert not re.search(r"NEEDED.*(torch|c10|python)", needed)


@pytest.mark.parametrize(
    ("without", "package"),
    [
        ("CMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON", "nlohmann-json3-dev"),
        ("CMAKE_DISABLE_FIND_PACKAGE_CLI11=ON", "libcli11-dev"),
        ("CMAKE_DISABLE_FIND_PACKAGE_GTest=ON", "libgtest-dev"),
        ("TRAINMON_BOOST=", "libboost-dev"),
    ],
)
def test_missing_library_is_named_with_its_package(tmp_path, without, package):
    result = run(
        "cmake",
        *("-S", ROOT, "-B", tmp_path, "-DTRAINMON_BUILD_TESTS=ON"),
        f"-D{without}",
    )
    assert result.returncode != 0
    assert f"apt-get install {package}" in result.stderr


def test_configuring_downloads_nothing():
    listed = run("git", "ls-files", "--", "*CMakeLists.txt", "*.cmake", cwd=ROOT).stdout.split()
    assert len(listed) > 10
    for name in listed:
        text = (ROOT / name).read_text()
        assert not re.search(r"FetchContent|ExternalProject|file\s*\(\s*DOWNLOAD", text), name
