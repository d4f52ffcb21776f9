#!/usr/bin/env bash
# The pictures of docs/gallery.md, made anew: trainings of two processes, then their pages in Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/apt_packages.sh
need chromium command -v chromium
install_missing gallery
scripts/side_venv.sh browser scripts/browser_requirements.txt
.venv-browser/bin/python scripts/gallery.py build/gallery docs/pictures
