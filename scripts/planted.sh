#!/usr/bin/env bash
# Pairs of trainings with a planted bug and without one, compared: the tables of docs/measurements-history.md.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
OMP_NUM_THREADS=1 .venv/bin/python tests/planted/campaign.py "$out/runs" --seeds ${@:-101 102 103}
