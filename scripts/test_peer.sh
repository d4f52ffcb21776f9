#!/usr/bin/env bash
# Runs tests/peer: our files beside those of mindstudio-probe, which has an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/side_venv.sh peer scripts/peer_requirements.txt
scripts/side_venv.sh peer833 scripts/peer833_requirements.txt --no-deps
timeout --kill-after=10 1800 .venv/bin/python -m pytest -q -s tests/peer \
  --peer-python .venv-peer/bin/python --peer833-python .venv-peer833/bin/python
