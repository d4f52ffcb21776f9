# The kill loop's child is a program of its own: real rows, a real writer thread, a real SIGKILL.
add_executable(kill_child monitor/kill_child.cpp)
target_link_libraries(kill_child PRIVATE trainmon_monitor trainmon_read SQLite::SQLite3)
trainmon_test(kill_loop SOURCES monitor/kill_loop_test.cpp DEPENDS monitor read answers)
target_compile_definitions(kill_loop_test PRIVATE KILL_CHILD="$<TARGET_FILE:kill_child>")
add_dependencies(kill_loop_test kill_child)
trainmon_test(kill_tables SOURCES monitor/kill_tables_test.cpp DEPENDS monitor read answers LIBRARIES SQLite::SQLite3)
target_compile_definitions(kill_tables_test PRIVATE KILL_CHILD="$<TARGET_FILE:kill_child>")
add_dependencies(kill_tables_test kill_child)
trainmon_test(kill_tensorboard SOURCES monitor/kill_tensorboard_test.cpp DEPENDS monitor read answers)
target_compile_definitions(kill_tensorboard_test PRIVATE KILL_CHILD="$<TARGET_FILE:kill_child>")
add_dependencies(kill_tensorboard_test kill_child)

trainmon_test(monitor SOURCES monitor/monitor_test.cpp monitor/faults_test.cpp
  monitor/flush_test.cpp DEPENDS monitor read answers)
trainmon_test(retention SOURCES monitor/retention_test.cpp DEPENDS monitor read answers)

trainmon_test(beside_writer SOURCES monitor/beside_writer_test.cpp DEPENDS monitor read answers LIBRARIES nlohmann_json::nlohmann_json)

trainmon_test(live_runs SOURCES monitor/live_runs_test.cpp DEPENDS monitor read answers)

trainmon_test(start SOURCES monitor/start_test.cpp DEPENDS monitor read answers LIBRARIES nlohmann_json::nlohmann_json)

trainmon_test(control SOURCES monitor/control_test.cpp DEPENDS monitor read answers)

# What is launched on CUDA devices, before a driver that has none.
if(NOT CMAKE_CROSSCOMPILING)
  trainmon_test(device SOURCES monitor/device_test.cpp monitor/device_check_test.cpp
    monitor/device_trace_test.cpp stats/stand_in_image.cpp DEPENDS monitor LIBRARIES driver_stand_in)
  target_compile_definitions(device_test PRIVATE
    LAUNCH_TRACE="${PROJECT_SOURCE_DIR}/tests/data/launch_trace.txt")
endif()

add_executable(embed_cpp ${PROJECT_SOURCE_DIR}/examples/embed_cpp/main.cpp)
target_link_libraries(embed_cpp PRIVATE trainmon_monitor trainmon_answers)
add_dependencies(cpp_tests embed_cpp)
add_test(NAME embed_cpp COMMAND embed_cpp ${CMAKE_CURRENT_BINARY_DIR}/embed_cpp_run)

# A program of its own, for it replaces malloc(); sanitizers have one themselves.
# Nor can a program that is linked as a whole, as the cross-compiled ones are.
if(NOT TRAINMON_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  trainmon_test(no_memory SOURCES monitor/no_memory_test.cpp DEPENDS monitor read LIBRARIES SQLite::SQLite3 nlohmann_json::nlohmann_json)

  # Sanitizers keep freed memory for a while.
  trainmon_test(endless SOURCES monitor/endless_test.cpp DEPENDS monitor read LIBRARIES nlohmann_json::nlohmann_json)

  # Preloaded into a program of its own: calls that fail.
  add_library(failing_calls MODULE monitor/failing_calls.cpp)
  target_link_libraries(failing_calls PRIVATE trainmon_options)
  add_executable(calls_child monitor/calls_child.cpp)
  target_link_libraries(calls_child PRIVATE trainmon_monitor)
  trainmon_test(calls SOURCES monitor/calls_test.cpp monitor/power_cut_test.cpp DEPENDS read LIBRARIES SQLite::SQLite3 nlohmann_json::nlohmann_json)
  target_compile_definitions(calls_test PRIVATE CALLS_CHILD="$<TARGET_FILE:calls_child>"
    FAILING_CALLS="$<TARGET_FILE:failing_calls>")
  add_dependencies(calls_test calls_child failing_calls)
endif()

# What is on the disk a flush interval after it was sealed: tests beside these would take the time.
set_tests_properties(kill_loop kill_tables kill_tensorboard PROPERTIES RUN_SERIAL TRUE)
