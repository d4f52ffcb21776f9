trainmon_test(directions SOURCES directions/direction_file_test.cpp directions/directions_verdict_test.cpp
              DEPENDS directions)
