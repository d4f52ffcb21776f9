#!/usr/bin/env bash
# The kill loop of the C++ tests, 5,000 kills instead of 300, then every reader under libFuzzer.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset dev >/dev/null
cmake --build --preset dev
TRAINMON_KILLS="${TRAINMON_KILLS:-5000}" ctest --preset dev --no-tests=error -R kill --timeout 14400
scripts/fuzz.sh
