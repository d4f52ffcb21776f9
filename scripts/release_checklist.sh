#!/usr/bin/env bash
# The release checklist, walked before `make dist` builds. It shows each point as done or open, and what to do
# about an open one. With --release an open point is an error; without it, files are built for trying out.
set -uo pipefail
cd "$(dirname "$0")/.."

open=0
point() {  # point WHAT WHAT_TO_DO COMMAND...: done when the command succeeds
  local what=$1 todo=$2
  shift 2
  if "$@" >/dev/null 2>&1; then
    echo "  done  $what"
  else
    echo "  OPEN  $what: $todo"
    open=$((open + 1))
  fi
}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
heading=$(grep -m 1 '^## ' CHANGELOG.md)
commit=$(git rev-parse HEAD)
untagged() { ! git rev-parse -q --verify "refs/tags/v$version"; }
clean() { [ -z "$(git status --porcelain)" ]; }
passed() { [ "$(cat "build/$1.passed" 2>/dev/null)" = "$commit" ]; }
entries() { awk '/^## / { n++ } n == 1 && /^- / { found = 1 } END { exit !found }' CHANGELOG.md; }
measured() {  # the bars: each line below the table names the commit that was measured
  local at commits
  commits=$(sed -n 's/^- [a-z_]*: .*, commit \([0-9a-f]*\).*/\1/p' docs/measurements.md)
  [ -n "$commits" ] || return 1
  for at in $commits; do git diff --quiet "$at" HEAD -- src python || return 1; done
}

echo "release $version, checklist:"
point "the version is new" "no tag v$version may exist; raise the version in pyproject.toml" untagged
point "CHANGELOG.md begins with $version and its date" "write '## $version (YYYY-MM-DD)' over its entries" \
  grep -qE "^## ${version//./\\.} \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$" <<<"$heading"
point "CHANGELOG.md has entries for it" "one entry for each change, with its numbers" entries
point "everything is committed" "commit, or take away what git status shows" clean
point ".ci/run passed on this commit" "run .ci/run" passed ci
point "the bars were measured on this code" "make bench, then commit docs/measurements.md" measured
point "docs/status.md speaks of this version" "read it, and name the version at its head" \
  grep -q "trainmon ${version//./\\.}" docs/status.md
echo "after the build: make test-dist; then git tag -a v$version"

if [ $open -gt 0 ]; then
  echo "$open open: what is built now is no release"
  [ "${1:-}" != --release ]
fi
