#!/usr/bin/env bash
# Everything that must pass with torch alone: format, layers, C++ tests, Python tests.
# Goes on after a failure and sums up at the end; exits non-zero when anything failed.
set -uo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
summary=()
failed=0
step() {  # step NAME COMMAND...
  local name=$1 begin=$SECONDS verdict=ok
  shift
  echo "== $name"
  "$@" || { verdict="FAILED ($?)"; failed=1; }
  summary+=("$(printf '%-32s %5d s  %s' "$name" $((SECONDS - begin)) "$verdict")")
}
# One process per file and a limit on each, so that one hang cannot hide the rest.
pytest_file() { timeout --kill-after=10 "${TEST_TIMEOUT:-900}" "$python" -m pytest -q "$1"; }

step format scripts/format.sh --check
step layers "$python" tests/check_layers.py
step c++ scripts/test_cpp.sh dev
for file in tests/python/test_*.py; do
  step "$(basename "$file")" pytest_file "$file"
done

echo
printf '%s\n' "${summary[@]}"
if [ $failed = 0 ]; then echo "all passed in $SECONDS s"; else echo "FAILED"; fi
exit $failed
