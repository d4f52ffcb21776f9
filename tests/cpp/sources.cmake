trainmon_test(wide_row ONE_THREAD SOURCES sources/wide_row_test.cpp DEPENDS answers convert sources LIBRARIES SQLite::SQLite3 nlohmann_json::nlohmann_json)
