#!/usr/bin/env bash
# faults.sh [SEEDS [CLEAN_STEPS]]: plants the faults of faults/catalogue.py in trainings of every setting, asks
# `trainmon diagnose`, and writes the tables of docs/detection.md. SEEDS (2) trainings of each setting, none with 0;
# and clean ones of CLEAN_STEPS (16,000) steps in all. The seeds come from the last commit of the rules: nobody chose
# them. CLEAN_SECONDS: clean trainings end after so many seconds each. With KEEP=1 what build/faults has is kept
# and counted, too.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-2}
clean=${2:-16000}
rules=$(git log -1 --format=%H -- src/detect src/answers/diagnose.cpp)
first=$((16#${rules:0:6}))
out=build/faults
[ "${KEEP:-0}" = 1 ] || rm -rf $out
export OMP_NUM_THREADS=1
run() {  # run RANKS NAME PROGRAM ARGUMENTS...
  .venv/bin/python -m torch.distributed.run --standalone --nproc-per-node "$1" "faults/$3" "$out/$2" "${@:4}" \
    >"$out/$2.log" 2>&1 || {
    tail -n 40 "$out/$2.log"
    echo "faults: $2 did not end well, see $out/$2.log" >&2
    exit 1
  }
  echo "faults: $2: $SECONDS s"
}
list() {  # list NAME: the settings, with their ranks
  .venv/bin/python -c "import sys; sys.path.insert(0, 'faults')
import training
print(*(f'{one.name} {one.ranks}' for one in training.$1), sep='\n')"
}
mkdir -p $out
mapfile -t settings < <(list SETTINGS)
mapfile -t clean_settings < <(list CLEAN_SETTINGS)
for setting in "${settings[@]}"; do
  read -r name ranks <<<"$setting"
  for ((seed = first; seed < first + seeds; ++seed)); do
    run "$ranks" "${seed}_$name" campaign.py "$name" $seed
  done
done
if [ "$clean" != 0 ]; then
  for setting in "${clean_settings[@]}"; do
    read -r name ranks <<<"$setting"
    run "$ranks" "clean_$name" clean.py "$name" $first $((clean / ${#clean_settings[@]})) \
      --seconds "${CLEAN_SECONDS:-0}"
  done
fi
[ "$seeds" != 0 ] || exit 0
.venv/bin/python faults/score.py $out --write docs/detection.md \
  --note "$(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD), rules of ${rules:0:9}, seeds $first to $((first + seeds - 1)), ${#settings[@]} settings."
