#!/usr/bin/env bash
# Formats C++ with clang-format and Python with ruff. --check only looks: it lints Python, counts
# lines, holds includes and imports against the layers and names of a folder against one another, and
# spells and counts what people read.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
clang_format=("$python" -c 'import clang_format; clang_format.clang_format()')
mapfile -t cpp < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh')
if [ "${1:-}" = --check ]; then
  "${clang_format[@]}" --dry-run -Werror "${cpp[@]}"
  "$python" -m ruff format --quiet --check .
  "$python" -m ruff check --quiet .
  "$python" tests/check_sizes.py
  "$python" tests/check_layers.py
  "$python" tests/check_names.py
  "$python" tests/check_prose.py
  # Tests misspell on purpose, and what npm gives is not ours.
  git ls-files -z -- '*.md' benchmarks docs examples include python scripts src ':!*/05_vendor.*' | xargs -0 "$python" -m codespell_lib
else
  "${clang_format[@]}" -i "${cpp[@]}"
  "$python" -m ruff check --quiet --fix --exit-zero .  # what is left, --check shows
  "$python" -m ruff format --quiet .
fi
