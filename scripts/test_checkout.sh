#!/usr/bin/env bash
# Clones this repository into a folder named `trainmon`, deep, with a space and a letter beyond ASCII in its
# path, then sets it up there and runs the tests that look at paths. Packages are links to those of .venv;
# the C++ parts are compiled there, without optimization. With --installed nothing is compiled: trainmon
# is the one installed in .venv. Names of test files as arguments replace these.
set -euo pipefail
cd "$(dirname "$0")/.."

compiles=true
if [ "${1:-}" = --installed ]; then compiles=false && shift; fi
work=$PWD/build/checkout
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
place=$work/"ein Häuschen"
while [ ${#place} -lt 190 ]; do place=$place/"tief darin"; done
place=$place/trainmon
mkdir -p "$(dirname "$place")"
git clone -q . "$place"
cp -al .venv "$place/.venv"
cd "$place"
if $compiles; then
  rm -f .venv/trainmon.stamp # what setup.sh takes for trainmon installed
  .venv/bin/python -m pip uninstall -q -y trainmon
  SKBUILD_CMAKE_BUILD_TYPE=Debug scripts/setup.sh
  scripts/format.sh --check
  cmake --preset dev >/dev/null
  cmake --build --preset dev --target base_test
  build/dev/tests/cpp/base_test --gtest_brief=1
fi

files=("$@")
[ ${#files[@]} -gt 0 ] || files=(tests/python/*/test_{adapter_steps,bars,completion,config,kinds,package}.py)
.venv/bin/python scripts/pytest_files.py "${files[@]}"
