#!/usr/bin/env bash
# Runs tests/frameworks in environments of their own, with the torch that .venv uses; with --prepare it makes
# them alone.
set -euo pipefail
cd "$(dirname "$0")/.."
# All at a time, for pip mostly waits.
environments=()
prepare() { "$@" & environments+=($!); }
prepare scripts/side_venv.sh frameworks scripts/frameworks_requirements.txt
# ColossalAI names an older torch and older models, with which it would replace the others'.
prepare scripts/side_venv.sh colossalai scripts/colossalai_requirements.txt --no-deps
prepare scripts/side_venv.sh megatron scripts/megatron_requirements.txt --no-deps
prepare scripts/test_mindspore.sh --prepare
for environment in "${environments[@]}"; do wait "$environment"; done
[ "${1:-}" != --prepare ] || exit 0
# A compilation of an operator that was killed leaves a lock, for which later ones wait without end.
export TORCH_EXTENSIONS_DIR=$PWD/build/torch_extensions
mkdir -p "$TORCH_EXTENSIONS_DIR"
find "$TORCH_EXTENSIONS_DIR" -name lock -delete
failed=0
# The longest first, so that none of them is left to run alone.
.venv-frameworks/bin/python scripts/pytest_files.py tests/frameworks/test_{lightning,examples}.py \
  -- .venv-megatron/bin/python tests/frameworks/test_*megatron*.py \
  -- .venv-frameworks/bin/python tests/frameworks/test_*.py || failed=1
scripts/test_mindspore.sh || failed=1
exit $failed
