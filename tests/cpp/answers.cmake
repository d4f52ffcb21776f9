trainmon_test(answers SOURCES answers/anomalies_test.cpp answers/blackbox_test.cpp answers/find_test.cpp answers/history_test.cpp DEPENDS answers recorder LIBRARIES nlohmann_json::nlohmann_json)
