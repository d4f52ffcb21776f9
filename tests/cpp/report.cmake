trainmon_test(report_gzip ONE_THREAD SOURCES report/gzip_test.cpp DEPENDS report)
trainmon_test(report_growing SOURCES report/growing_report_test.cpp DEPENDS report read)
trainmon_test(report_cell_table ONE_THREAD SOURCES report/cell_table_test.cpp DEPENDS report)
