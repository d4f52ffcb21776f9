trainmon_test(model ONE_THREAD SOURCES model/layers_test.cpp model/timeline_test.cpp DEPENDS model)
