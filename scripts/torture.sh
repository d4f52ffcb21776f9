#!/usr/bin/env bash
# The kill loop of the C++ tests, 5,000 kills instead of 300; every allocation and every call on a file fails;
# then every reader under libFuzzer. TRAINMON_CAMPAIGN=FILE gathers a line for each part.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset dev >/dev/null
cmake --build --preset dev
TRAINMON_KILLS="${TRAINMON_KILLS:-5000}" ctest --preset dev --no-tests=error -R kill --timeout 14400
# Their files come and go ten thousand times: in memory, where there is room.
TMPDIR=$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}") TRAINMON_WHOLE=1 \
  ctest --preset dev --no-tests=error -R '^(no_memory|calls|endless)$' --timeout 14400
scripts/fuzz.sh
