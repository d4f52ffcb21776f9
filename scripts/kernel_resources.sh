#!/usr/bin/env bash
# Registers, spills and shared memory of the CUDA kernels beside the stored figures:
# benchmarks/python/kernel_resources.py, which takes the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/cuda_compiler.sh
.venv/bin/python benchmarks/python/kernel_resources.py "$@"
