#!/usr/bin/env bash
# test_versions.sh [WORD]: the adapter's tests on other versions of torch and Python, and those of
# MindSpore on an older one (scripts/versions.txt); with a WORD, only lines that contain it. Needs tens
# of GB in build/versions. Ends with a table; docs/frameworks.md has the one of the last full run.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/pythons.sh
place=$PWD/build/versions
mkdir -p "$place"

# What depends on the version: hooks, steps, values, activations, compilation; not files and tools.
torch_tests=(tests/python/test_adapter_*.py tests/python/test_features*.py
  tests/python/test_collectives.py tests/python/test_grad_probe_steps.py)

prepare() {  # prepare PYTHON ENVIRONMENT FRAMEWORK NUMPY: installs both and trainmon, built for it
  local python=$1 env=$2 wheels=$place/wheels-$3
  shift 3
  if [ ! -x "$env/bin/python" ]; then "$python" -m venv "$env" || return; fi
  if ! echo "$*" | cmp -s - "$env/requirements.stamp"; then
    "$env/bin/python" -m pip install -q --disable-pip-version-check "$@" pytest==9.0.3 hypothesis==6.155.2 pandas==2.3.3 setuptools ||
      return
    echo "$*" >"$env/requirements.stamp"
  fi
  rm -rf "$wheels"
  "$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$wheels" . &&
    "$env/bin/python" -m pip install -q --disable-pip-version-check --no-deps --force-reinstall \
      "$wheels"/trainmon-*.whl
}

failed=0
table=()
while read -r minor framework numpy; do
  case "$minor $framework" in '#'*) continue ;; *"${1:-}"*) ;; *) continue ;; esac
  name="Python $minor, ${framework/==/ }"
  tests=("${torch_tests[@]}")
  case $framework in mindspore*) tests=(tests/mindspore) ;; esac
  python=$(find_python "${minor#3.}")
  if [ -z "$python" ]; then
    table+=("$name: FAILED, no Python $minor here")
    failed=1
    continue
  fi
  env=$place/${framework/==/-}-$minor
  if ! prepare "$python" "$env" "$minor" "$framework" "$numpy"; then
    table+=("$name: FAILED, it could not be installed")
    failed=1
    continue
  fi
  log=$place/${framework/==/-}-$minor.log
  OMP_NUM_THREADS=1 timeout --kill-after=10 3600 "$env/bin/python" -m pytest -q "${tests[@]}" 2>&1 | tee "$log"
  [ "${PIPESTATUS[0]}" = 0 ] || failed=1
  table+=("$name: $(tail -n 1 "$log")")
  table+=("$(sed -n 's/^SKIPPED /    &/p' "$log")")
done <scripts/versions.txt
printf '%s\n' "${table[@]}"
exit $failed
