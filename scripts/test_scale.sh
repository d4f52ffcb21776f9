#!/usr/bin/env bash
# Runs tests/scale: the queries of docs/scale.md in DuckDB, Spark and Ray, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v java >/dev/null; then
  install="apt-get install -y --no-install-recommends default-jre-headless"
  if ! command -v apt-get >/dev/null; then
    echo "test-scale: Spark needs a Java runtime" >&2
    exit 1
  elif [ "$(id -u)" = 0 ]; then
    run=env
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    run=sudo
  else
    echo "test-scale: Spark needs a Java runtime. Type this, then try again: sudo $install" >&2
    exit 1
  fi
  $run apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive $run $install >/dev/null
fi
scripts/side_venv.sh scale scripts/scale_requirements.txt
timeout --kill-after=10 1800 .venv-scale/bin/python -m pytest -q tests/scale
