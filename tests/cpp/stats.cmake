# Tests of the statistics.
trainmon_test(stats_bits SOURCES stats_bits_test.cpp DEPENDS stats)
target_compile_definitions(stats_bits_test PRIVATE
  STAT_BITS="${PROJECT_SOURCE_DIR}/tests/data/stat_bits.txt")
trainmon_test(stats_cuda SOURCES stats_cuda_test.cpp DEPENDS stats)
trainmon_test(stats_kernels SOURCES stats_kernels_test.cpp DEPENDS stats)
trainmon_test(stats_layout SOURCES stats_layout_test.cpp DEPENDS stats)
trainmon_test(stats_pairs SOURCES stats_pairs_test.cpp DEPENDS stats)
trainmon_test(stats_probe SOURCES stats_probe_test.cpp DEPENDS stats)
trainmon_test(stats_state SOURCES stats_state_test.cpp DEPENDS stats)
