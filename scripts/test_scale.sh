#!/usr/bin/env bash
# Runs tests/scale: the queries of docs/scale.md in DuckDB, Spark and Ray, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt_packages.sh

need default-jre-headless command -v java  # for Spark
install_missing test-scale
scripts/side_venv.sh scale scripts/scale_requirements.txt
timeout --kill-after=10 1800 .venv-scale/bin/python -m pytest -q tests/scale
