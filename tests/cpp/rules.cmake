trainmon_test(rules SOURCES rules/alert_console_test.cpp rules/statistics_test.cpp DEPENDS rules)
target_include_directories(rules_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
