#!/usr/bin/env bash
# Runs tests/frameworks in an environment of its own, with the torch that .venv uses.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-frameworks
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [ ! -x $venv/bin/python ]; then
  .venv/bin/python -m venv --system-site-packages $venv
fi
# What .venv holds (torch, numpy, pytest, trainmon) is seen from here and not installed twice.
site .venv/bin/python >"$(site $venv/bin/python)/base.pth"

stamp=$venv/requirements.stamp
if ! cmp -s scripts/frameworks_requirements.txt $stamp; then
  # The torch at hand is a constraint: nothing may pull another one, with its CUDA libraries, in.
  $venv/bin/python - >$venv/constraints.txt <<'PYTHON'
from importlib.metadata import version
print(f"torch=={version('torch')}", f"numpy=={version('numpy')}", sep="\n")
PYTHON
  $venv/bin/python -m pip install -q --disable-pip-version-check -c $venv/constraints.txt \
    -r scripts/frameworks_requirements.txt
  cp scripts/frameworks_requirements.txt $stamp
fi
timeout --kill-after=10 1800 $venv/bin/python -m pytest -q tests/frameworks
