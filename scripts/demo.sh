#!/usr/bin/env bash
# The demo: trains, watches, plants a fault and finds it again.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python examples/demo_ddp.py "$@"
