#!/usr/bin/env bash
# Every measurement in docs/measurements.md; the peer is measured from an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/side_venv.sh peer scripts/peer_requirements.txt
peer=.venv-peer/bin/python
cmake --preset release >/dev/null
cmake --build --preset release
run() { echo "== $*"; "$@"; }
run build/release/benchmarks/cpp/stats_bench
run build/release/benchmarks/cpp/probe_bench
run .venv/bin/python benchmarks/python/bench_stats.py --peer-python $peer
run .venv/bin/python benchmarks/python/bench_hooks.py
run .venv/bin/python benchmarks/python/bench_overhead.py
run .venv/bin/python benchmarks/python/bench_memory.py
run .venv/bin/python benchmarks/python/bench_peer.py --peer-python $peer
run .venv/bin/python benchmarks/python/bench_parquet.py
scripts/side_venv.sh peer833 scripts/peer833_requirements.txt --no-deps
run .venv/bin/python benchmarks/python/bench_convert.py --peer-python .venv-peer833/bin/python
run .venv/bin/python benchmarks/python/bench_grad_probe.py --peer-python .venv-peer833/bin/python
run .venv/bin/python benchmarks/python/bench_directions.py --peer-python .venv-peer833/bin/python
run .venv/bin/python benchmarks/python/bench_sinks.py build/release/benchmarks/cpp/sinks_bench --peer-python $peer
run .venv/bin/python benchmarks/python/bench_tensorboard.py build/release/benchmarks/cpp/tensorboard_bench
