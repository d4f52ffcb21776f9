#!/usr/bin/env bash
# Brings a bare Debian machine to a working state: system packages, .venv, torch, trainmon itself.
# With --tools: only what building C++ and checking the source needs. Fast when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

tools_only=false
[ "${1:-}" = --tools ] && tools_only=true

say() { echo "setup: $*"; }

# --- a Python of 3.10 or newer ----------------------------------------------------------------
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
    if new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
}

# --- system packages --------------------------------------------------------------------------
. scripts/apt_packages.sh
header() {
  printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | "${CXX:-c++}" -std=c++17 -E -x c++ -
}
python_has_headers() {
  "$1" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

find_missing() {
  missing=()
  python=$(find_python)
  need g++ command -v "${CXX:-c++}"
  need cmake command -v cmake
  need ninja-build command -v ninja
  need nlohmann-json3-dev header nlohmann/json.hpp
  need libcli11-dev header CLI/CLI.hpp
  need libboost-dev header boost/beast/version.hpp
  need libzstd-dev header zstd.h
  need libsqlite3-dev header sqlite3.h
  need libgtest-dev header gtest/gtest.h
  if [ -z "$python" ]; then
    missing+=(python3 python3-dev python3-venv)
  else
    need python3-dev python_has_headers "$python"
    need python3-venv "$python" -c 'import ensurepip, venv'
  fi
}

find_missing
if [ ${#missing[@]} -gt 0 ]; then
  install_missing setup
  find_missing
  if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: still missing after installing: ${missing[*]}" >&2
    echo "setup: a Python of 3.10 or newer can be named with PYTHON=..." >&2
    exit 1
  fi
fi

# --- virtual environment ----------------------------------------------------------------------
# It sees the system's packages, so that a torch chosen by the user is the torch that is used.
if ! new_enough .venv/bin/python; then
  say "making .venv with $("$python" --version)"
  rm -rf .venv
  "$python" -m venv --system-site-packages .venv
fi
venv=$PWD/.venv/bin/python

stamp=.venv/requirements.stamp
if ! cmp -s scripts/requirements.txt "$stamp"; then
  say "installing Python tools"
  "$venv" -m pip install -q --disable-pip-version-check -r scripts/requirements.txt
  cp scripts/requirements.txt "$stamp"
fi
scripts/cuda_compiler.sh
$tools_only && exit 0

if ! "$venv" -c 'import importlib.util as u; raise SystemExit(u.find_spec("torch") is None)'; then
  say "installing torch 2.13.0: some hundred megabytes"
  "$venv" -m pip install -q --disable-pip-version-check torch==2.13.0
fi

# --- trainmon ---------------------------------------------------------------------------------
# Keeps what pip says in build/setup.log, and shows every 15 seconds how far the compiler is.
show_progress() {
  local line shown=$SECONDS
  mkdir -p build
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ ^[[:space:]]*\[([0-9]+)/([0-9]+)\] ]] && [ $((SECONDS - shown)) -ge 15 ]; then
      shown=$SECONDS
      say "compiled ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}, $SECONDS s" >&2
    fi
  done >build/setup.log
}
stamp=.venv/trainmon.stamp
sources=(CMakeLists.txt pyproject.toml README.md LICENSE cmake include src python)
if [ ! -e "$stamp" ] || [ -n "$(find "${sources[@]}" -newer "$stamp" ! -name '*.pyc' \
                                     ! -name __pycache__ -print -quit)" ]; then
  say "building and installing trainmon: 200 C++ files, 3 to 4 minutes on 2 cores the first time"
  touch "$stamp.new"  # what changes while this builds is built next time
  if ! "$venv" -m pip install -v --disable-pip-version-check --no-build-isolation --no-deps . 2>&1 |
    show_progress; then
    tail -n 40 build/setup.log >&2
    say "building failed; all of its output is in build/setup.log" >&2
    exit 1
  fi
  mv "$stamp.new" "$stamp"
fi
say "ready: .venv/bin/trainmon, .venv/bin/python"
