# Tests of the statistics.
trainmon_test(stats_bits SOURCES stats/bits_test.cpp DEPENDS stats)
target_compile_definitions(stats_bits_test PRIVATE
  STAT_BITS="${PROJECT_SOURCE_DIR}/tests/data/stat_bits.txt")
trainmon_test(stats_check SOURCES stats/check_test.cpp DEPENDS stats)
trainmon_test(stats_cuda ONE_THREAD SOURCES stats/cuda_test.cpp stats/cuda_check_test.cpp DEPENDS stats)
trainmon_test(stats_entropy ONE_THREAD SOURCES stats/entropy_test.cpp DEPENDS stats)
trainmon_test(stats_fingerprint ONE_THREAD SOURCES stats/fingerprint_test.cpp DEPENDS stats)
trainmon_test(stats_kernels SOURCES stats/kernels_test.cpp DEPENDS stats)
trainmon_test(stats_layout SOURCES stats/layout_test.cpp DEPENDS stats)
trainmon_test(stats_pairs ONE_THREAD SOURCES stats/pairs_test.cpp DEPENDS stats)
trainmon_test(stats_probe SOURCES stats/probe_test.cpp DEPENDS stats)
trainmon_test(stats_sample ONE_THREAD SOURCES stats/sample_test.cpp DEPENDS stats)
trainmon_test(stats_state ONE_THREAD SOURCES stats/state_test.cpp DEPENDS stats)
trainmon_test(stats_update SOURCES stats/update_test.cpp DEPENDS stats)

if(NOT CMAKE_CROSSCOMPILING)
  include(${CMAKE_CURRENT_SOURCE_DIR}/driver_stand_in.cmake)
endif()
