trainmon_test(answers SOURCES answers/anomalies_test.cpp answers/find_test.cpp DEPENDS answers)
target_link_libraries(answers_test PRIVATE nlohmann_json::nlohmann_json)
