trainmon_test(read SOURCES read/account_test.cpp read/compact_test.cpp read/decode_test.cpp read/live_test.cpp
                           read/merge_test.cpp read/pieces_test.cpp read/read_run_test.cpp read/rows_by_kind_test.cpp
                           read/start_numbers_test.cpp
              DEPENDS read answers stats LIBRARIES nlohmann_json::nlohmann_json)
trainmon_test(repair SOURCES read/repair_test.cpp DEPENDS read LIBRARIES nlohmann_json::nlohmann_json)
trainmon_test(read_damage ONE_THREAD SOURCES read/damage_test.cpp DEPENDS read)
trainmon_test(index_file SOURCES read/index_file_test.cpp DEPENDS read LIBRARIES nlohmann_json::nlohmann_json)
