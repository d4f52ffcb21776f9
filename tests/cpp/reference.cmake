# The examples of the C++ reference: scripts/site/cpp_reference.py shows them.
trainmon_test(reference SOURCES reference/config_test.cpp reference/measuring_test.cpp reference/monitor_test.cpp
  reference/reading_test.cpp reference/records_test.cpp DEPENDS monitor read answers)
