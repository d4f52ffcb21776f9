trainmon_test(directions ONE_THREAD SOURCES directions/direction_file_test.cpp directions/directions_verdict_test.cpp
              DEPENDS directions)
