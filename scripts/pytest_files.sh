#!/usr/bin/env bash
# pytest_files.sh PYTHON FILE ... [-- PYTHON FILE ...]: runs test files, each in a process of its own, so that
# one hang cannot hide the rest; three at a time, as many wait for the processes they start. Shows what a file
# printed when it has ended, and how long each took at the end; exits non-zero when one failed.
set -uo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

run_file() {  # run_file PYTHON PLACE FILE
  local name begin=$SECONDS status=0
  name=$(basename "$3")
  # Tests that start processes of their own give each one thread, too.
  OMP_NUM_THREADS=1 timeout --kill-after=10 "${TEST_TIMEOUT:-1200}" \
    "$1" -m pytest -q "$3" >"$2/$name" 2>&1 &
  trap "kill $! 2>/dev/null" INT TERM
  wait $! || status=$?
  printf '== %s\n%s\n' "$3" "$(cat "$2/$name")"
  if [ $status = 0 ]; then verdict=ok; else verdict="FAILED ($status)"; fi
  printf '%-40s %5d s  %s\n' "$name" $((SECONDS - begin)) "$verdict" >"$2/$name.line"
  return $status
}
export -f run_file

files=()
runs=()  # the Python of a file, then the file
python=$1
shift
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then
    python=$2
    shift 2
    continue
  fi
  files+=("$1")
  runs+=("$python" "$1")
  shift
done
failed=0
printf '%s\0' "${runs[@]}" | xargs -0 -P 3 -n 2 bash -c 'run_file "$1" "$0" "$2"' "$place" || failed=1
printf '\n'
for file in "${files[@]}"; do
  cat "$place/$(basename "$file").line" 2>/dev/null || { echo "$(basename "$file") did not end"; failed=1; }
done
exit $failed
