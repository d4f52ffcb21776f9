trainmon_test(compare SOURCES compare/compare_tolerance_test.cpp compare/compared_names_test.cpp
                              compare/step_rows_test.cpp
              DEPENDS compare)
