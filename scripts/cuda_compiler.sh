#!/usr/bin/env bash
# Puts CUDA's compiler into build/cuda, where src/stats/cuda.cmake looks first: about 250 MB. Where the index
# has none for this machine, it says so, and trainmon is built with the nvcc of the machine or without kernels.
set -euo pipefail
cd "$(dirname "$0")/.."

at=build/cuda
if cmp -s scripts/cuda_requirements.txt $at/requirements.stamp; then exit 0; fi
echo "setup: installing CUDA's compiler into $at"
rm -rf $at
mkdir -p $at
if .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
  --require-hashes --target $at -r scripts/cuda_requirements.txt; then
  cp scripts/cuda_requirements.txt $at/requirements.stamp
else
  rm -rf $at
  echo "setup: no CUDA compiler of the package index for $(uname -m): kernels need an nvcc on the PATH" >&2
fi
