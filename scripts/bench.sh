#!/usr/bin/env bash
# Every benchmark, or those named (--only NAME); those beside the peer make environments of its own.
# Arguments go to benchmarks/python/bench.py, which keeps results and writes the table of the bars.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset release >/dev/null
cmake --build --preset release
.venv/bin/python benchmarks/python/bench.py "$@"
