#!/usr/bin/env bash
# Runs tests/bridges: `trainmon push` beside the trackers' own libraries, in an environment of their own,
# and beside a real Prometheus server, which is installed where it is missing. With --prepare: makes the
# environment and no more.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/side_venv.sh bridges scripts/bridges_requirements.txt
[ "${1:-}" != --prepare ] || exit 0
. scripts/apt_packages.sh
need prometheus command -v prometheus
install_missing test-bridges
# The package starts a server of its own, which nobody asked for.
[ ${#missing[@]} = 0 ] || as_root systemctl disable --now prometheus >/dev/null 2>&1 || true
command -v prometheus >/dev/null || {
  echo "test-bridges: there is no prometheus, and these tests need one" >&2
  exit 1
}
.venv-bridges/bin/python scripts/pytest_files.py tests/bridges/test_*.py
