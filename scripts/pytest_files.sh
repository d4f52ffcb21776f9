#!/usr/bin/env bash
# pytest_files.sh PYTHON FILE[,FILE...] ... [-- PYTHON FILE ...]: runs test files, those with a comma between
# them in one process (importing torch takes longer than many a file), so that one hang cannot hide the rest.
# Two more run at a time than there are processors, for many wait for the processes they start. Shows what one
# printed when it has ended, and at the end how long each took and how much of the processors. Exits non-zero when
# one failed.
set -uo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

name_of() {  # name_of FILE[,FILE...]: that of the first, and how many more there are
  local files
  IFS=, read -ra files <<<"$1"
  printf '%s' "$(basename "${files[0]}")"
  [ ${#files[@]} = 1 ] || printf ' and %d more' $((${#files[@]} - 1))
}
run_files() {  # run_files PYTHON PLACE FILE[,FILE...]
  local name files fields begin=$SECONDS status=0
  name=$(name_of "$3")
  IFS=, read -ra files <<<"$3"
  # Tests that start processes of their own give each one thread, too.
  OMP_NUM_THREADS=1 timeout --kill-after=10 "${TEST_TIMEOUT:-1200}" \
    "$1" -m pytest -q "${files[@]}" >"$2/$name" 2>&1 &
  trap "kill $! 2>/dev/null" INT TERM
  wait $! || status=$?
  printf '== %s\n%s\n' "${files[*]}" "$(cat "$2/$name")"
  if [ $status = 0 ]; then verdict=ok; else verdict="FAILED ($status)"; fi
  read -ra fields </proc/$$/stat
  printf '%-48s %5d s %5d s of CPU  %s\n' "$name" $((SECONDS - begin)) $(((fields[15] + fields[16]) / 100)) "$verdict" \
    >"$2/$name.line"
  return $status
}
export -f name_of run_files

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
printf '%s\0' "${runs[@]}" | xargs -0 -P $(($(nproc) + 2)) -n 2 bash -c 'run_files "$1" "$0" "$2"' "$place" || failed=1
printf '\n'
for file in "${files[@]}"; do
  cat "$place/$(name_of "$file").line" 2>/dev/null || { echo "$(name_of "$file") did not end"; failed=1; }
done
exit $failed
