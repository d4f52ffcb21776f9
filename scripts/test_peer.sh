#!/usr/bin/env bash
# Runs tests/peer: our files beside those of mindstudio-probe, which has an environment of its own. With
# --prepare: makes it and no more.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/side_venv.sh peer scripts/peer_requirements.txt
scripts/side_venv.sh peer833 scripts/peer833_requirements.txt --no-deps
[ "${1:-}" != --prepare ] || exit 0
export PYTEST_ADDOPTS="-s --peer-python .venv-peer/bin/python --peer833-python .venv-peer833/bin/python"
.venv/bin/python scripts/pytest_files.py tests/peer/test_*.py
