trainmon_test(model ONE_THREAD SOURCES model/timeline_test.cpp DEPENDS model)
