# Tests of the statistics.
trainmon_test(stats_bits SOURCES stats/bits_test.cpp DEPENDS stats)
target_compile_definitions(stats_bits_test PRIVATE
  STAT_BITS="${PROJECT_SOURCE_DIR}/tests/data/stat_bits.txt")
trainmon_test(stats_check SOURCES stats/check_test.cpp DEPENDS stats)
trainmon_test(stats_cuda ONE_THREAD SOURCES stats/cuda_test.cpp DEPENDS stats)
trainmon_test(stats_entropy ONE_THREAD SOURCES stats/entropy_test.cpp DEPENDS stats)
trainmon_test(stats_fingerprint ONE_THREAD SOURCES stats/fingerprint_test.cpp DEPENDS stats)
trainmon_test(stats_kernels SOURCES stats/kernels_test.cpp DEPENDS stats)
trainmon_test(stats_layout SOURCES stats/layout_test.cpp DEPENDS stats)
trainmon_test(stats_pairs ONE_THREAD SOURCES stats/pairs_test.cpp DEPENDS stats)
trainmon_test(stats_probe SOURCES stats/probe_test.cpp DEPENDS stats)
trainmon_test(stats_state ONE_THREAD SOURCES stats/state_test.cpp DEPENDS stats)
trainmon_test(stats_update SOURCES stats/update_test.cpp DEPENDS stats)

# A driver without a device, which programs get in place of the real one when they are linked with
# it. Programs that are cross-compiled are linked as a whole and load no library.
if(NOT CMAKE_CROSSCOMPILING)
  add_library(driver_stand_in SHARED stats/driver_stand_in.cpp stats/stand_in_kernels.cpp)
  target_link_libraries(driver_stand_in PRIVATE trainmon_options)
  set_target_properties(driver_stand_in PROPERTIES OUTPUT_NAME cuda SOVERSION 1
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/driver_stand_in)
endif()
