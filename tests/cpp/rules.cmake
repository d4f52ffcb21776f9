trainmon_test(rules ONE_THREAD SOURCES rules/alert_console_test.cpp rules/statistics_test.cpp DEPENDS rules)
