trainmon_test(config SOURCES config_test.cpp DEPENDS config)
