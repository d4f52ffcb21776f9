trainmon_test(config SOURCES config/config_test.cpp DEPENDS config)
