"""Wheels installed offline into empty environments, with no compiler and no headers in reach, and used."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(*command, env=None, check=True):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=900, env=env
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def wheel_for(wheels, minor, machine):
    (wheel,) = [w for w in wheels if w.serves(minor, machine)]
    return wheel


class Environment:
    """An empty environment whose PATH holds nothing but its own programs."""

    def __init__(self, interpreter, folder: Path, wheel, numpy_wheels: Path):
        run(interpreter, "-m", "venv", folder)
        self.bin = folder / "bin"
        self.variables = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "CC": "/nowhere",
            "CXX": "/nowhere",
        }
        self.python("-m", "pip", "install", "-q", "--no-index", wheel.path)
        listed = json.loads(self.python("-m", "pip", "list", "--format=json").stdout)
        assert {p["name"] for p in listed} - {"pip", "setuptools", "wheel"} == {"trainmon"}
        self.python(
            *("-m", "pip", "install", "-q", "--no-index", "--no-deps"),
            *(f"--find-links={numpy_wheels}", "numpy"),
        )

    def python(self, *arguments):
        return run(self.bin / "python", "-I", *arguments, env=self.variables)

    def trainmon(self, *arguments, check=True):
        return run(self.bin / "trainmon", *arguments, env=self.variables, check=check)


def test_arrays_and_the_command_line(interpreter, tmp_path, wheels, numpy_wheels):
    name = run(interpreter, "-c", "import sys; print(*sys.version_info[:2])").stdout.split()
    minor = int(name[1])
    wheel = wheel_for(wheels, minor, "x86_64")
    environment = Environment(interpreter, tmp_path / "env", wheel, numpy_wheels)
    assert not any((environment.bin / tool).exists() for tool in ("cc", "c++", "gcc", "cmake"))
    got = json.loads(environment.python(HERE / "arrays.py").stdout)
    assert got["python"] == [3, minor] and str(tmp_path) in got["core"]
    check_values(got)
    check_command_line(environment.trainmon, str(wheel.version))
    listed = environment.python(
        "-c", "from trainmon import _core; print(_core.detected_cpu_level())"
    )
    assert listed.stdout.strip() == level_of_this_machine()


def level_of_this_machine() -> str:
    flags = set(
        re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split()
    )
    if {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "baseline"


def check_values(got: dict) -> None:
    """Against NumPy, for the arrays of arrays.py without a NaN; the first has one."""
    stats = {name: [float.fromhex(x) for x in column] for name, column in got["stats"].items()}
    generator = np.random.default_rng(7)
    generator.standard_normal((300, 517))
    large = generator.standard_normal(100_003) * 1e200
    half = generator.standard_normal((64, 64, 33)).astype(np.float16)[::2, 1:, :].astype(np.float64)
    whole = generator.integers(-1000, 1000, 10_000).astype(np.float64)
    assert stats["nans"] == [1, 0, 0, 0]
    assert stats["count"] == [300 * 517, large.size, half.size, whole.size]
    assert np.isnan(stats["norm"][0])
    # Lanes of float32 take eight elements of float16 each: as many roundings of a sum, and half of
    # that relative error of its root (docs/statistics.md).
    lanes = 8 * 2.0**-24
    for place, array, rounding in ((1, large, 0.0), (2, half, lanes), (3, whole, 0.0)):
        scale = np.abs(array).max()
        expected = scale * np.sqrt(np.sum(np.longdouble(array / scale) ** 2))
        assert stats["norm"][place] == pytest.approx(float(expected), rel=1e-12 + rounding / 2)
        assert stats["min"][place] == array.min() and stats["max"][place] == array.max()
        within = 1e-9 * abs(array.mean()) + rounding * np.abs(array).mean()
        assert stats["mean"][place] == pytest.approx(array.mean(), abs=within)


def check_command_line(trainmon, version: str) -> None:
    assert trainmon("--version").stdout == f"trainmon {version}\n"
    doctor = json.loads(trainmon("doctor", "--json").stdout)
    assert doctor["version"] == version
    assert doctor["cuda_kernels"] == "sm_80 sm_90 sm_100 sm_120"
    # This machine has a driver or has none; either is said.
    assert (doctor["cuda_driver_missing"] == "") == any(Path("/dev").glob("nvidia[0-9]")), doctor[
        "cuda_driver_missing"
    ]
    assert '"$schema"' in trainmon("config", "schema").stdout


README_LOOP = re.compile(
    r"```python\n(import trainmon\n\nmon = trainmon\.watch\(.*?)```", re.DOTALL
)
TRAINING = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randn(4, 8) for _ in range(12)]
batches[9][2, 3] = float("nan")
"""
STEP = """    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
"""


def test_the_quick_start_of_the_readme(tmp_path, wheels, numpy_wheels, arm):
    """README's loop on the torch at hand; then its commands, here and on aarch64."""
    minor = sys.version_info[1]
    wheel = wheel_for(wheels, minor, "x86_64")
    environment = Environment(sys.executable, tmp_path / "env", wheel, numpy_wheels)
    site = environment.python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # torch from where the tests run, after what is installed here.
    homes = [place for place in sys.path if place.endswith("site-packages")]
    (Path(site.stdout.strip()) / "torch.pth").write_text("\n".join(homes) + "\n")

    (loop,) = README_LOOP.findall((ROOT / "README.md").read_text())
    body = re.sub(r"^    \.\.\. .*\n", STEP, loop, flags=re.MULTILINE).replace(
        "in data:", "in batches:"
    )
    assert STEP in body and "in batches:" in body
    script = tmp_path / "train.py"
    script.write_text(
        f"import os\nos.chdir({str(tmp_path)!r})\n{TRAINING}{body}\nprint(trainmon.__file__)\n"
    )
    assert str(tmp_path) in environment.python(script).stdout

    out = tmp_path / "trainmon_runs/local"
    found = environment.trainmon("first-bad", out, check=False)
    assert found.returncode == 1
    assert re.search(r"step 9, rank 0, the forward or the loss", found.stdout), found.stdout
    read = environment.python(
        "-c",
        f"import trainmon, math; t = trainmon.read({str(out)!r}, kinds='grad_reduced', stats=['norm', 'nans']);"
        "print(len(t['norm']), int(sum(t['nans']) > 0))",
    )
    rows, bad = map(int, read.stdout.split())
    assert rows == 4 * 12 and bad == 1

    for command in (["first-bad", out], ["top", out], ["show", out, "--json"]):
        here = environment.trainmon(*command, check=False)
        there = arm.trainmon(*command, check=False)
        assert (there.returncode, there.stdout) == (here.returncode, here.stdout), command


class Arm:
    """The aarch64 wheel under qemu: Debian's Python 3.11, NumPy, the wheel."""

    def __init__(self, root: Path, folder: Path, wheel, numpy_wheels: Path):
        self.home = folder
        self.base = ["qemu-aarch64-static", "-L", root]
        self.interpreter = root / "usr/bin/python3.11"
        self.prefix = root / "usr"
        run(
            *(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"),
            *("--only-binary=:all:", "--implementation=cp", "--python-version=3.11"),
            *("--platform=manylinux_2_28_aarch64", "--platform=manylinux_2_27_aarch64"),
            *("--platform=manylinux2014_aarch64", f"--find-links={numpy_wheels}"),
            *("--target", folder, wheel.path, "numpy"),
        )

    def python(self, *arguments):
        variables = {"PYTHONHOME": str(self.prefix), "PYTHONPATH": str(self.home)}
        return run(*self.base, self.interpreter, "-s", *arguments, env=os.environ | variables)

    def trainmon(self, *arguments, check=True):
        return run(*self.base, self.home / "bin/trainmon", *arguments, check=check)


@pytest.fixture(scope="module")
def arm(tmp_path_factory, wheels, numpy_wheels, arm_root):
    wheel = wheel_for(wheels, 11, "aarch64")
    return Arm(arm_root, tmp_path_factory.mktemp("arm"), wheel, numpy_wheels)


def test_aarch64_arrays_have_the_same_bits(arm, tmp_path, wheels, numpy_wheels):
    there = json.loads(arm.python(HERE / "arrays.py").stdout)
    assert "aarch64" in there["core"]
    check_values(there)
    environment = Environment(
        sys.executable,
        tmp_path / "env",
        wheel_for(wheels, sys.version_info[1], "x86_64"),
        numpy_wheels,
    )
    here = json.loads(environment.python(HERE / "arrays.py").stdout)
    assert there["stats"] == here["stats"]


def test_aarch64_command_line(arm, wheels):
    check_command_line(arm.trainmon, str(wheels[0].version))
