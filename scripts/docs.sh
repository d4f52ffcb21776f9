#!/usr/bin/env bash
# The documentation site in build/docs. No warning passes, every link in it is followed, and nothing in
# it is loaded from the network. Building needs no network once .venv-docs is there.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/side_venv.sh docs scripts/docs_requirements.txt
python=.venv-docs/bin/python
rm -rf build/docs build/docs-source
"$python" scripts/site/stage.py build/docs-source
generated=(python.md cpp.md command_line.md examples.md)
"$python" tests/check_prose.py "${generated[@]/#/build/docs-source/}"
"$python" -m sphinx -q -n -W --keep-going -c scripts/site -b html -d build/docs-doctrees \
  build/docs-source build/docs
"$python" scripts/site/check_site.py build/docs
echo "docs: build/docs/index.html"
