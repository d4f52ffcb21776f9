# A driver without a device, which programs get in place of the real one when they are linked with
# it. Programs that are cross-compiled are linked as a whole and load no library.
add_library(driver_stand_in SHARED
  ${CMAKE_CURRENT_LIST_DIR}/stats/driver_stand_in.cpp ${CMAKE_CURRENT_LIST_DIR}/stats/stand_in_kernels.cpp)
target_link_libraries(driver_stand_in PRIVATE trainmon_options)
target_include_directories(driver_stand_in PUBLIC ${CMAKE_CURRENT_LIST_DIR})
set_target_properties(driver_stand_in PROPERTIES OUTPUT_NAME cuda SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/driver_stand_in)
