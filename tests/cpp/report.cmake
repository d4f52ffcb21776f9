trainmon_test(report_gzip ONE_THREAD SOURCES report/gzip_test.cpp DEPENDS report)
