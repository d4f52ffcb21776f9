#!/usr/bin/env bash
# Tests and, with --bench, measurements that need a CUDA device, nvcc and a torch that sees it.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
command -v nvcc >/dev/null || PATH=/usr/local/cuda/bin:$PATH
command -v nvcc >/dev/null || { echo "test-gpu: nvcc is needed, on the PATH or in /usr/local/cuda/bin" >&2; exit 1; }
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
  echo "test-gpu: this torch sees no CUDA device; install one that does, then try again" >&2
  exit 1
}
CMAKE_ARGS=-DTRAINMON_CUDA=ON "$python" -m pip install -q --disable-pip-version-check \
  --no-build-isolation --no-deps --force-reinstall .
"$python" -m pytest -q tests/gpu
if [ "${1:-}" = --bench ]; then
  "$python" benchmarks/python/bench_cuda.py --json build/bench/cuda.json
fi
