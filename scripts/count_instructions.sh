#!/usr/bin/env bash
# Instructions of the hot paths beside the stored counts: benchmarks/python/count_instructions.py,
# which takes the arguments; --update stores the counts of this run.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt_packages.sh

need valgrind command -v valgrind
install_missing count-instructions
cmake --preset dev >/dev/null
cmake --build --preset dev --target hot_paths
.venv/bin/python benchmarks/python/count_instructions.py build/dev/benchmarks/cpp/hot_paths "$@"
