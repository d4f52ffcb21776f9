# Its child is a program of its own, which is killed.
add_executable(flight_child recorder/flight_child.cpp)
target_link_libraries(flight_child PRIVATE trainmon_recorder)
trainmon_test(recorder SOURCES recorder/flight_recorder_test.cpp recorder/flight_damage_test.cpp recorder/flight_kill_test.cpp
              DEPENDS recorder)
target_compile_definitions(recorder_test PRIVATE FLIGHT_CHILD="$<TARGET_FILE:flight_child>")
add_dependencies(recorder_test flight_child)
