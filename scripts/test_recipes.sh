#!/usr/bin/env bash
# Follows the recipes of docs/extending.md in a copy of the tree: applies the patches of tests/recipes, and
# builds and runs their tests. Fails where a recipe needs more product files than it may.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD/build/recipes
rm -rf "$tree"
mkdir -p "$tree"
git ls-files -z -- CMakeLists.txt CMakePresets.json cmake examples include pyproject.toml src tests/cpp |
  xargs -0 cp --parents -t "$tree"

follow() {  # follow RECIPE MOST: applies its patch, which may change so many product files
  local patch=tests/recipes/$1.patch files
  files=$(grep -Ec '^\+\+\+ b/(cmake|include|python|src)/' "$patch")
  echo "recipe $1: $files product files"
  if [ "$files" -gt "$2" ]; then
    echo "recipe $1 may change $2 product files at most" >&2
    exit 1
  fi
  git apply --directory="${tree#"$PWD"/}" "$patch"
}
follow rule 2
follow sink 2

cd "$tree"
# What is looked for is whether it compiles and answers right, so nothing is optimized.
cmake --preset dev -DTRAINMON_BUILD_BENCHMARKS=OFF -DTRAINMON_CUDA=OFF -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 >/dev/null
cmake --build --preset dev --target rules_test --target tally_test
build/dev/tests/cpp/rules_test --gtest_filter='JumpRule.*'
build/dev/tests/cpp/tally_test
