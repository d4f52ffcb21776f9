#!/usr/bin/env bash
# side_venv.sh NAME REQUIREMENTS [PIP OPTION ...]: the environment .venv-NAME, which sees everything in
# .venv, its command line too, and adds what the file REQUIREMENTS pins; where X_requirements.txt has an
# X_constraints.txt beside it, that holds too. Keeps other people's packages out of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-$1
requirements=$2
shift 2
constraints=()
beside=${requirements%_requirements.txt}_constraints.txt
if [ -f "$beside" ]; then constraints=(-c "$beside"); fi
pins=("$requirements" "${constraints[@]:1}")
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [ ! -x "$venv/bin/python" ]; then
  .venv/bin/python -m venv --system-site-packages "$venv"
fi
site .venv/bin/python >"$(site "$venv/bin/python")/base.pth"
ln -sf ../../.venv/bin/trainmon "$venv/bin/trainmon"

if ! cat "${pins[@]}" | cmp -s - "$venv/requirements.stamp"; then
  # The torch at hand is a constraint: nothing may pull another one, with its CUDA libraries, in. But
  # where REQUIREMENTS name a torch, that one hides it.
  "$venv/bin/python" - "$requirements" >"$venv/constraints.txt" <<'PYTHON'
import sys
from importlib.metadata import version
kept = ["numpy"] if "\ntorch==" in open(sys.argv[1]).read() else ["torch", "numpy"]
print(*(f"{name}=={version(name)}" for name in kept), sep="\n")
PYTHON
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -c "$venv/constraints.txt" \
    "${constraints[@]}" "$@" -r "$requirements"
  cat "${pins[@]}" >"$venv/requirements.stamp"
fi
