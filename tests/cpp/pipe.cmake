trainmon_test(batch_queue SOURCES pipe/batch_queue_test.cpp DEPENDS pipe)
trainmon_test(pipe SOURCES pipe/pipe_test.cpp DEPENDS pipe rules)
trainmon_test(run_directory SOURCES pipe/run_directory_test.cpp DEPENDS pipe)
