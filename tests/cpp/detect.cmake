trainmon_test(detect SOURCES detect/engine_test.cpp detect/findings_test.cpp DEPENDS detect stats)
