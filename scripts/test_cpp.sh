#!/usr/bin/env bash
# Builds and runs the C++ tests of one preset: dev (default), asan or tsan.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-dev}
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset" --no-tests=error
