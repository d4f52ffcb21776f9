#!/usr/bin/env bash
# test_cpp.sh [PRESET [build]]: builds and runs the C++ tests of one preset: dev (default), asan or tsan. With
# "build" it does not run them.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-dev}
cmake --preset "$preset" >/dev/null
# The rest of the tree is compiled once, with warnings as errors; sanitizers see what tests run.
[ "$preset" = dev ] && target=all || target=cpp_tests
cmake --build --preset "$preset" --target "$target"
if [ "$preset" = tsan ]; then
  left_out=(
    # They change bytes and look for wrong answers. Other cases of the same programs take the same paths by threads.
    "*AStormOf*Faults*" "*AStormOfMutations*" "FlightDamage.*" "Compact.Damage*" "Compact.LargePayloads*"
    "Repair.DamageAnywhere*" "IndexFile.ASegmentThatChanges*" "IndexFile.AForged*" "IndexFile.OneThatIsCut*"
    "GrowingReport.ColumnsThatStepsShare" "Decode.*"
    # They have one thread, or leave what threads do to shorter cases.
    "*EveryType.AgreesWith*" "Kernels.*" "Sketch.*" "StatBits.AreThoseOfTheFile*"
    "LogFaults.EveryErrorAtEveryWrite" "LogSink.GivesBack*" "Pieces.WhatIsLeftOut*" "Compact.EveryRecord*"
    "Compact.GroupsKeep*" "GrowingReport.WhateverComes"
  )
  GTEST_FILTER=-$(IFS=: && echo "${left_out[*]}")
  export GTEST_FILTER
fi
[ "${2:-}" = build ] || ctest --preset "$preset" --no-tests=error
