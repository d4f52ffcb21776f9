#!/usr/bin/env bash
# test_versions.sh [WORD [FILE ...]]: the tests that depend on the framework's version, on other versions
# of it and of Python (scripts/versions.txt). With a WORD, only lines that contain it; with FILEs, only
# those of a line's tests, and the others' results stay. An environment for each is kept in
# build/versions, up to 5 GB each. versions_table.py writes the results into docs/frameworks.md.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/pythons.sh
place=$PWD/build/versions
mkdir -p "$place"
tools=(pytest==9.0.3 pytest-timeout==2.4.0 hypothesis==6.155.2 pandas==2.3.3 setuptools)
word=${1:-}
chosen=" ${*:2} "

# Hooks, steps, values, features, collectives, wrappers, compilation; not files and tools.
torch_tests=(tests/python/*/test_adapter_*.py tests/python/watch/test_features*.py tests/python/grad_probe/test_grad_probe*.py
  tests/python/watch/test_wrapper_versions.py tests/python/watch/test_collectives.py tests/python/watch/test_compile.py
  tests/python/watch/test_values.py tests/python/harmless/test_invisible.py tests/python/watch/test_equality.py)

build() {  # build PYTHON WHEELS: trainmon for this Python, where there is none or sources are newer
  local wheel=("$2"/trainmon-*.whl)
  if [ ! -e "${wheel[0]}" ] || [ -n "$(find src include python cmake CMakeLists.txt pyproject.toml \
    -name __pycache__ -prune -o -type f -newer "${wheel[0]}" -print -quit)" ]; then
    rm -rf "$2"
    "$1" -m pip wheel -q --disable-pip-version-check --no-deps -w "$2" .
  fi
}

prepare() {  # prepare PYTHON ENVIRONMENT PACKAGE ...: installs them
  local env=$2 python=$2/bin/python
  if [ ! -x "$python" ]; then "$1" -m venv "$env" || return; fi
  shift 2
  if ! echo "$@" | cmp -s - "$env/requirements.stamp"; then
    "$python" -m pip install -q --disable-pip-version-check "$@" || return
    echo "$@" >"$env/requirements.stamp"
  fi
}

run_file() {  # run_file ENVIRONMENT RESULTS FILE
  local result=$2/${3//\//.}
  OMP_NUM_THREADS=1 timeout --kill-after=10 3000 "$1/bin/python" -m pytest -q -p no:cacheprovider \
    --timeout=600 --junit-xml "$result.xml" "$3" >"$result.log" 2>&1
  echo "$3: $(tail -n 1 "$result.log")"
}
export -f run_file

while read -r minor framework numpy <&3; do
  case "$minor $framework" in '#'*) continue ;; *"$word"*) ;; *) continue ;; esac
  name=${framework/==/-}-$minor
  env=$place/$name results=$place/$name.results
  tests=("${torch_tests[@]}") more=()
  case $framework in
    torch==2.0.*) tests=(tests/python/watch/test_adapter_{activations,gradients,steps}.py) ;; # what it can
    mindspore*) tests=(tests/mindspore/test_*.py) more=(matplotlib==3.10.8 tensorboard==2.21.0) ;;
  esac
  mkdir -p "$results"
  now=()
  for file in "${tests[@]}"; do
    result=$results/${file//\//.}.xml
    case "$chosen" in *" $file "* | "  ") : >"$result"; now+=("$file") ;; esac
    [ -e "$result" ] || : >"$result" # an empty one: expected, and no result
  done
  python=$(find_python "${minor#3.}")
  if [ -z "$python" ]; then
    echo "test_versions: no Python $minor here" >&2
  elif ! { prepare "$python" "$env" "$framework" "$numpy" "${tools[@]}" "${more[@]}" &&
    build "$python" "$place/wheel-$minor" && "$env/bin/python" -m pip install -q \
      --disable-pip-version-check --no-deps --force-reinstall "$place/wheel-$minor"/trainmon-*.whl; }; then
    echo "test_versions: $name could not be installed" >&2
  else
    echo "$name"
    printf '%s\n' "${now[@]}" | xargs -P 2 -I{} bash -c 'run_file "$@"' run "$env" "$results" {}
  fi
done 3<scripts/versions.txt
.venv/bin/python scripts/versions_table.py "$word"
