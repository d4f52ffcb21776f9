#!/usr/bin/env bash
# Runs tests/frameworks in environments of their own, with the torch that .venv uses.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/side_venv.sh frameworks scripts/frameworks_requirements.txt
# ColossalAI names an older torch and older models, with which it would replace the others'.
scripts/side_venv.sh colossalai scripts/colossalai_requirements.txt --no-deps
scripts/side_venv.sh megatron scripts/megatron_requirements.txt --no-deps
timeout --kill-after=10 1800 .venv-frameworks/bin/python -m pytest -q tests/frameworks \
  --ignore-glob='*megatron*'
timeout --kill-after=10 1200 .venv-megatron/bin/python -m pytest -q tests/frameworks/test_*megatron*.py
scripts/test_mindspore.sh
