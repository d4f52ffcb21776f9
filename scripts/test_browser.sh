#!/usr/bin/env bash
# Runs tests/browser: the page of `trainmon report` and `trainmon serve` in a real Chromium, which is installed where it is
# missing, and notebooks, in an environment of their own; and whether the page's bundle is made of its packages.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt_packages.sh
need chromium command -v chromium
need fonts-liberation bash -c "fc-list | grep -q ."  # any: a page without one has no widths
install_missing test-browser
command -v chromium >/dev/null || {
  echo "test-browser: there is no chromium, and these tests need one" >&2
  exit 1
}
scripts/side_venv.sh browser scripts/browser_requirements.txt
scripts/page_bundle.sh --check
.venv-browser/bin/python scripts/pytest_files.py tests/browser/test_*.py
