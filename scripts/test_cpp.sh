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
  # They change bytes and look for wrong answers. Other cases of the same programs take the same paths by threads.
  export GTEST_FILTER="-*AStormOf*Faults*:*AStormOfMutations*:FlightDamage.*:Compact.Damage*:Compact.LargePayloads*\
:Repair.DamageAnywhere*:IndexFile.ASegmentThatChanges*:IndexFile.AForged*:IndexFile.OneThatIsCut*\
:GrowingReport.ColumnsThatStepsShare"
fi
[ "${2:-}" = build ] || ctest --preset "$preset" --no-tests=error
