trainmon_test(tools SOURCES tools/account_test.cpp tools/anomalies_test.cpp tools/damage_test.cpp
                            tools/decode_test.cpp tools/find_test.cpp tools/live_test.cpp
                            tools/merge_test.cpp tools/read_run_test.cpp
              DEPENDS sinks tools)
target_include_directories(tools_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(tools_test PRIVATE nlohmann_json::nlohmann_json)
