#!/usr/bin/env bash
# faults.sh [SEEDS [CLEAN_STEPS]]: plants the faults of faults/catalogue.py in trainings of every setting, asks
# `trainmon diagnose`, and writes the tables of docs/detection.md. SEEDS (2) trainings of each setting; and a
# clean one of CLEAN_STEPS (2,000) steps. The seeds come from the last commit of the rules: nobody chose them.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-2}
clean=${2:-2000}
rules=$(git log -1 --format=%H -- src/detect src/answers/diagnose.cpp)
first=$((16#${rules:0:6}))
out=build/faults
rm -rf $out
export OMP_NUM_THREADS=1
run() {  # run SETTING RANKS FOLDER ARGUMENTS...
  .venv/bin/python -m torch.distributed.run --standalone --nproc-per-node "$2" \
    faults/campaign.py "$out/$3_$1" "$1" "${@:4}" >"$out.log" 2>&1 || {
    tail -n 40 "$out.log"
    echo "faults: $1 did not end well, see $out.log" >&2
    exit 1
  }
  echo "faults: $1, $3: $SECONDS s"
}
mkdir -p build
mapfile -t settings < <(.venv/bin/python -c 'import sys; sys.path.insert(0, "faults")
from training import SETTINGS
print(*(f"{one.name} {one.ranks}" for one in SETTINGS), sep="\n")')
for setting in "${settings[@]}"; do
  read -r name ranks <<<"$setting"
  for ((seed = first; seed < first + seeds; ++seed)); do run "$name" "$ranks" $seed $seed; done
  [ "$clean" = 0 ] || run "$name" "$ranks" clean $first --clean "$clean"
done
.venv/bin/python faults/score.py $out --write docs/detection.md \
  --note "$(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD), rules of ${rules:0:9}, seeds $first to $((first + seeds - 1)), ${#settings[@]} settings."
