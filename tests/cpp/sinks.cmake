trainmon_test(sinks SOURCES sinks/log_faults_test.cpp sinks/log_test.cpp sinks/memory_test.cpp
              DEPENDS sinks read)

trainmon_test(grad_probe ONE_THREAD SOURCES sinks/grad_probe_test.cpp DEPENDS sinks stats)

trainmon_test(grad_stats SOURCES sinks/grad_stats_test.cpp sinks/shared_csv_test.cpp DEPENDS sinks)

trainmon_test(msprobe ONE_THREAD SOURCES sinks/msprobe_test.cpp DEPENDS sinks)

trainmon_test(msprobe_anomaly ONE_THREAD SOURCES sinks/msprobe_anomaly_test.cpp DEPENDS sinks LIBRARIES nlohmann_json::nlohmann_json)

trainmon_test(tensorboard ONE_THREAD SOURCES sinks/event_file_test.cpp sinks/tensorboard_test.cpp DEPENDS sinks)

trainmon_test(tables ONE_THREAD SOURCES sinks/tables_test.cpp DEPENDS sinks LIBRARIES SQLite::SQLite3)
