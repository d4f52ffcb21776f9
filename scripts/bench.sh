#!/usr/bin/env bash
# Every benchmark, or those named (--only NAME); the peer is measured from environments of its own.
# Arguments go to benchmarks/python/bench.py, which keeps results and writes the table of the bars.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/side_venv.sh peer scripts/peer_requirements.txt
scripts/side_venv.sh peer833 scripts/peer833_requirements.txt --no-deps
cmake --preset release >/dev/null
cmake --build --preset release
.venv/bin/python benchmarks/python/bench.py "$@"
