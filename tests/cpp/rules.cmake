trainmon_test(rules SOURCES rules/alert_console_test.cpp rules/statistics_test.cpp DEPENDS rules)
