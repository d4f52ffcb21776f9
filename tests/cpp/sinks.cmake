trainmon_test(sinks SOURCES sinks/log_faults_test.cpp sinks/log_test.cpp sinks/memory_test.cpp
              DEPENDS sinks tools)
target_include_directories(sinks_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
