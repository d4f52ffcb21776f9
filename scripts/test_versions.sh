#!/usr/bin/env bash
# test_versions.sh [WORD]: the tests that depend on the framework's version, on other versions of it and
# of Python (scripts/versions.txt); with a WORD, only lines that contain it. An environment for each is
# kept in build/versions, up to 5 GB each. versions_table.py writes the results into docs/frameworks.md.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/pythons.sh
place=$PWD/build/versions
mkdir -p "$place"
tools=(pytest==9.0.3 pytest-timeout==2.4.0 hypothesis==6.155.2 pandas==2.3.3 setuptools)

# Hooks, steps, values, features, collectives, wrappers, compilation; not files and tools.
torch_tests=(tests/python/test_adapter_*.py tests/python/test_values.py tests/python/test_invisible.py
  tests/python/test_features*.py tests/python/test_collectives.py tests/python/test_grad_probe*.py
  tests/python/test_wrapper_versions.py tests/python/test_equality.py tests/python/test_compile.py)

prepare() {  # prepare PYTHON ENVIRONMENT PACKAGE ...: installs them, and trainmon built for it
  local env=$2 python=$2/bin/python wheel=$2/wheel
  if [ ! -x "$python" ]; then "$1" -m venv "$env" || return; fi
  shift 2
  if ! echo "$@" | cmp -s - "$env/requirements.stamp"; then
    "$python" -m pip install -q --disable-pip-version-check "$@" || return
    echo "$@" >"$env/requirements.stamp"
  fi
  rm -rf "$wheel"
  "$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$wheel" . &&
    "$python" -m pip install -q --disable-pip-version-check --no-deps --force-reinstall \
      "$wheel"/trainmon-*.whl
}

while read -r minor framework numpy <&3; do
  case "$minor $framework" in '#'*) continue ;; *"${1:-}"*) ;; *) continue ;; esac
  name=${framework/==/-}-$minor
  rm -f "$place/$name.xml"
  tests=("${torch_tests[@]}")
  case $framework in
    torch==2.0.*) tests=(tests/python/test_adapter_{activations,gradients,steps}.py) ;; # what it can
    mindspore*) tests=(tests/mindspore) ;;
  esac
  python=$(find_python "${minor#3.}")
  if [ -z "$python" ]; then
    echo "test_versions: no Python $minor here" >&2
  elif ! prepare "$python" "$place/$name" "$framework" "$numpy" "${tools[@]}"; then
    echo "test_versions: $name could not be installed" >&2
  else
    OMP_NUM_THREADS=1 timeout --kill-after=10 3600 "$place/$name/bin/python" -m pytest -q --timeout=600 \
      --junit-xml "$place/$name.xml" "${tests[@]}" | tee "$place/$name.log"
  fi
done 3<scripts/versions.txt
.venv/bin/python scripts/versions_table.py "${1:-}"
