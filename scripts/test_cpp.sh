#!/usr/bin/env bash
# test_cpp.sh [PRESET [build]]: builds and runs the C++ tests of one preset: dev (default), asan or tsan. With
# "build" it does not run them.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-dev}
cmake --preset "$preset" >/dev/null
# The rest of the tree is compiled once, with warnings as errors; sanitizers see what tests run.
[ "$preset" = dev ] && target=all || target=cpp_tests
cmake --build --preset "$preset" --target "$target"
[ "${2:-}" = build ] || ctest --preset "$preset" --no-tests=error
