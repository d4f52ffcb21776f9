#!/usr/bin/env bash
# Runs tests/frameworks in an environment of its own, with the torch that .venv uses; then MindSpore.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/side_venv.sh frameworks scripts/frameworks_requirements.txt
timeout --kill-after=10 1800 .venv-frameworks/bin/python -m pytest -q tests/frameworks
scripts/test_mindspore.sh
