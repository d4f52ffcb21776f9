trainmon_test(convert SOURCES convert/compare_tolerance_test.cpp convert/compared_names_test.cpp DEPENDS convert)
