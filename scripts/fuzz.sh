#!/usr/bin/env bash
# Every reader under libFuzzer for TRAINMON_FUZZ_SECONDS (300) each, starting from tests/data/damaged.
# What is found lies in build/fuzz/findings, a figure of each in the file that TRAINMON_CAMPAIGN names. Names of readers as arguments choose some of them.
set -euo pipefail
cd "$(dirname "$0")/.."

clang=${CLANGXX:-$(command -v clang++-19 || command -v clang++ || true)}
if [ -z "$clang" ]; then
  install="apt-get install -y --no-install-recommends clang-19 libclang-rt-19-dev"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "fuzz: libFuzzer needs clang: $install, or name one with CLANGXX=" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $install >/dev/null
  clang=$(command -v clang++-19)
fi
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTRAINMON_FUZZ=ON >/dev/null

readers=("$@")
[ ${#readers[@]} -gt 0 ] || readers=(log diagnose index csv sqlite msprobe run_json control anomaly config npy sign flight)
cmake --build build/fuzz --target "${readers[@]/%/_fuzz}"
mkdir -p build/fuzz/findings
seconds=${TRAINMON_FUZZ_SECONDS:-300}
data=tests/data/damaged
failed=0
for reader in "${readers[@]}"; do
  seeds=("$data/base")
  [ -d "tests/fuzz/seeds/$reader" ] && seeds+=("tests/fuzz/seeds/$reader")
  [ -d "$data/$reader" ] && seeds+=("$data/$reader")  # flight makes sound files of any bytes
  [ "$reader" = run_json ] && seeds+=("$data/health_json")
  [ -d "$data/found/$reader" ] && seeds+=("$data/found/$reader")
  corpus=build/fuzz/corpus/$reader
  mkdir -p "$corpus"
  log=build/fuzz/$reader.log
  verdict=ok
  # A database that is read costs memory that SQLite keeps; a file is never large here.
  "build/fuzz/tests/fuzz/${reader}_fuzz" "$corpus" "${seeds[@]}" -max_total_time="$seconds" \
    -max_len=20000 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$reader-" >"$log" 2>&1 || { verdict=FAILED; failed=1; }
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%-10s %10s executions in %s s  %s\n' "$reader" "${runs:-?}" "$seconds" "$verdict"
  [ -z "${TRAINMON_CAMPAIGN:-}" ] ||
    printf '{"campaign": "fuzz_%s", "what": "libFuzzer with sanitizers: %s_fuzz.cpp", "count": %s, "unit": "executions", "failures": %s, "seconds": %s}\n' \
      "$reader" "$reader" "${runs:-0}" "$([ $verdict = ok ] && echo 0 || echo 1)" "$seconds" >>"$TRAINMON_CAMPAIGN"
  [ $verdict = ok ] || tail -40 "$log"
done
exit $failed
