#!/usr/bin/env bash
# The tests that depend most on torch's version, on the newest torch: in an environment of its own, which
# sees what .venv has, trainmon included. `make test-versions` runs more of them, on older ones, too.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/side_venv.sh newest scripts/newest_requirements.txt
.venv-newest/bin/python -c 'import torch; print("torch", torch.__version__)'
.venv-newest/bin/python scripts/pytest_files.py \
  tests/python/*/test_{compile,adapter_activations,adapter_gradients,adapter_steps}.py
