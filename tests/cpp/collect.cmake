trainmon_test(windows SOURCES collect/windows_test.cpp DEPENDS collect)
trainmon_test(governor ONE_THREAD SOURCES collect/governor_test.cpp DEPENDS collect)
trainmon_test(collector SOURCES collect/collector_test.cpp DEPENDS collect)
