#!/usr/bin/env bash
# Everything that must pass with torch alone: what format.sh checks, C++ tests, Python tests.
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
step format scripts/format.sh --check
step c++ scripts/test_cpp.sh dev
# The longest first, so that none of them is left to run alone. These, and those that look at a whole process,
# have one of their own; of the others one has six.
alone=(tests/python/*/test_{invisible,lifecycle,equality,collectives,bounds,adapter_spread,compile,control,disk,compare,ranks_differ,package,diagnose,serve,values,examples}.py)
alone+=(tests/python/harmless/test_*.py)
mapfile -t rest < <(printf '%s\n' tests/python/*/test_*.py | grep -vxF "$(printf '%s\n' "${alone[@]}")" | xargs -n 6 | tr ' ' ,)
step python "$python" scripts/pytest_files.py "${alone[@]}" "${rest[@]}"

echo
printf '%s\n' "${summary[@]}"
if [ $failed = 0 ]; then echo "all passed in $SECONDS s"; else echo "FAILED"; fi
exit $failed
