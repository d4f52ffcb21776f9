#!/usr/bin/env bash
# Runs tests/mindspore in an environment of its own, .venv-mindspore, which does not see .venv's torch;
# trainmon is what .venv uses. With --prepare: makes the environment and no more.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-mindspore
if [ ! -x "$venv/bin/python" ]; then .venv/bin/python -m venv "$venv"; fi
if ! cmp -s scripts/mindspore_requirements.txt "$venv/requirements.stamp"; then
  "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    -r scripts/mindspore_requirements.txt
  cp scripts/mindspore_requirements.txt "$venv/requirements.stamp"
fi
[ "${1:-}" != --prepare ] || exit 0
# The folder that holds the package: of a build tree when PYTHONPATH names one, else of .venv.
package=$(.venv/bin/python -c 'import os, trainmon; print(os.path.dirname(trainmon.__file__))')
links=$venv/package
mkdir -p "$links"
ln -sfn "$package" "$links/trainmon"
export PYTHONPATH=$PWD/$links OMP_NUM_THREADS=1
failed=0
"$venv/bin/python" scripts/pytest_files.py tests/mindspore/test_{parallel,*}.py || failed=1
timeout --kill-after=10 300 "$venv/bin/python" examples/mindspore_gpt.py --out "$venv/example_run" || failed=1
exit $failed
