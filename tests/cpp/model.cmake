trainmon_test(model SOURCES model/timeline_test.cpp DEPENDS model)
