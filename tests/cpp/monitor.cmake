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

trainmon_test(live_runs SOURCES monitor/live_runs_test.cpp DEPENDS monitor read answers)

trainmon_test(start SOURCES monitor/start_test.cpp DEPENDS monitor read answers LIBRARIES nlohmann_json::nlohmann_json)

trainmon_test(control SOURCES monitor/control_test.cpp DEPENDS monitor read answers)

add_executable(embed_cpp ${PROJECT_SOURCE_DIR}/examples/embed_cpp/main.cpp)
target_link_libraries(embed_cpp PRIVATE trainmon_monitor trainmon_answers)
add_dependencies(cpp_tests embed_cpp)
add_test(NAME embed_cpp COMMAND embed_cpp ${CMAKE_CURRENT_BINARY_DIR}/embed_cpp_run)

# A program of its own, for it replaces operator new; sanitizers have one themselves.
if(NOT TRAINMON_SANITIZE)
  trainmon_test(no_memory SOURCES monitor/no_memory_test.cpp DEPENDS monitor read answers)
endif()

# What is on the disk a flush interval after it was sealed: tests beside these would take the time.
set_tests_properties(kill_loop kill_tables kill_tensorboard PROPERTIES RUN_SERIAL TRUE)
