trainmon_test(wide_row SOURCES sources/wide_row_test.cpp DEPENDS answers convert sources)
target_link_libraries(wide_row_test PRIVATE SQLite::SQLite3 nlohmann_json::nlohmann_json)
