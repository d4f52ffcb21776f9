#!/usr/bin/env bash
# Every measurement in docs/measurements.md. The peer is measured where its package is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release >/dev/null
cmake --build --preset release
for program in build/release/benchmarks/cpp/*_bench; do
  echo "== $(basename "$program")"
  "$program"
done
for script in benchmarks/python/bench_*.py; do
  echo "== $(basename "$script")"
  .venv/bin/python "$script"
done
