trainmon_test(convert SOURCES convert/direction_file_test.cpp convert/directions_verdict_test.cpp
              DEPENDS convert)
target_include_directories(convert_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
