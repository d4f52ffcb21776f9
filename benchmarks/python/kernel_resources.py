"""What CUDA's assembler gives each kernel on each architecture, beside the stored figures.

Compiles the kernels with the compiler of scripts/cuda_compiler.sh; no GPU is needed. More registers,
spilled bytes or shared memory than benchmarks/kernel_resources.json has end it with 1. Figures of
another compiler are shown, not compared.

    python benchmarks/python/kernel_resources.py [--update] [--compiler build/cuda/nvidia/cu13/bin/nvcc]
"""

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "benchmarks/kernel_resources.json"
SOURCES = ("measure.cu", "measure_checked.cu")
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")


def resources(said: str) -> dict:
    """Of `ptxas -v`, by kernel: registers, bytes of the stack, spilled and shared."""
    found = {}
    for name, of in re.findall(
        r"Compiling entry function '(\w+)' for .*?\n(.*?Used .*?)\n", said, re.DOTALL
    ):
        numbers = {
            "registers": re.search(r"Used (\d+) registers", of),
            "stack": re.search(r"(\d+) bytes stack frame", of),
            "spilled": re.search(r"(\d+) bytes spill stores", of),
            "shared": re.search(r"(\d+) bytes smem", of),
        }
        found[name] = {what: int(one[1]) if one else 0 for what, one in numbers.items()}
    return found


def of_source(compiler: Path, architecture: str, source: str) -> dict:
    done = subprocess.run(
        [compiler, "-cubin", "-Xptxas", "-v", "-std=c++20", "-O3", "--expt-relaxed-constexpr"]
        + [f"-arch={architecture}", "-ccbin", "g++", f"-I{ROOT}/include", f"-I{ROOT}/src"]
        + ["-o", "/dev/null", ROOT / "src/stats/cuda" / source],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"kernel_resources: {source} does not compile for {architecture}:\n{done.stderr}"
        )
    return resources(done.stdout + done.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="store the figures of this run")
    parser.add_argument("--compiler", type=Path, default=ROOT / "build/cuda/nvidia/cu13/bin/nvcc")
    options = parser.parse_args()

    version = subprocess.run([options.compiler, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"V([0-9.]+)", version)[1]
    with ThreadPoolExecutor(2) as pool:
        both = [(architecture, source) for architecture in ARCHITECTURES for source in SOURCES]
        each = list(pool.map(lambda one: of_source(options.compiler, *one), both))
    kernels = {architecture: {} for architecture in ARCHITECTURES}
    for (architecture, _), found in zip(both, each, strict=True):
        kernels[architecture] |= found
    if not all(each):
        raise SystemExit("kernel_resources: the assembler named no kernel")
    if options.update:
        STORED.write_text(json.dumps({"compiler": version, "kernels": kernels}, indent=1) + "\n")
    stored = json.loads(STORED.read_text())
    comparable = stored["compiler"] == version
    grown = 0
    for architecture, of in kernels.items():
        for kernel, now in of.items():
            before = stored["kernels"].get(architecture, {}).get(kernel)
            worse = before is None or any(now[what] > before.get(what, 0) for what in now)
            grown += worse
            figures = ", ".join(f"{what} {value}" for what, value in now.items())
            print(f"{architecture} {kernel}: {figures}" + (f"  was {before}" if worse else ""))
    if not comparable:
        print(f"compiler {version}, stored are those of {stored['compiler']}: not compared")
        return 0
    if grown:
        print(f"{grown} kernels need more than stored; --update stores it where it is meant")
    return grown > 0


if __name__ == "__main__":
    sys.exit(main())
