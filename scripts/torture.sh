#!/usr/bin/env bash
# The fault campaign at its full length: the C++ tests that kill and fail, trainings of torch, and every
# reader under libFuzzer. What they did becomes figures of docs/reliability.md.
set -euo pipefail
cd "$(dirname "$0")/.."
export TRAINMON_WHOLE=${TRAINMON_WHOLE:-1} TRAINMON_CAMPAIGN=$PWD/build/campaign.jsonl OMP_NUM_THREADS=1
cmake --preset dev >/dev/null
cmake --build --preset dev
rm -f "$TRAINMON_CAMPAIGN"
failed=0  # what failed is a figure, too
TRAINMON_KILLS="${TRAINMON_KILLS:-5000}" ctest --preset dev --no-tests=error -R kill --timeout 14400 || failed=1
# Their files come and go ten thousand times: in memory, where there is room.
TMPDIR=$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}") \
  ctest --preset dev --no-tests=error -R '^(no_memory|calls|endless|beside_writer)$' --timeout 14400 || failed=1
for file in tests/python/torture/test_*.py tests/python/harmless/test_{invisible,user_exceptions}.py; do
  .venv/bin/python -m pytest -q "$file" || failed=1
done
scripts/fuzz.sh || failed=1
.venv/bin/python scripts/reliability_doc.py "$TRAINMON_CAMPAIGN"
exit $failed
