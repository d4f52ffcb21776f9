trainmon_test(read SOURCES read/account_test.cpp read/compact_test.cpp read/damage_test.cpp read/decode_test.cpp read/live_test.cpp
                           read/merge_test.cpp read/pieces_test.cpp read/read_run_test.cpp
                           read/rows_by_kind_test.cpp
              DEPENDS read answers stats)
target_link_libraries(read_test PRIVATE nlohmann_json::nlohmann_json)
