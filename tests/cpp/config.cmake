trainmon_test(config ONE_THREAD SOURCES config/config_test.cpp DEPENDS config)
