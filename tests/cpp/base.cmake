trainmon_test(base SOURCES base/crc32_test.cpp base/crc32c_test.cpp base/failpoint_test.cpp
                           base/file_test.cpp base/folder_test.cpp base/log_test.cpp base/made_ahead_test.cpp base/md5_test.cpp base/npy_test.cpp base/number_set_test.cpp
                           base/sign_file_test.cpp base/text_test.cpp
              DEPENDS base)
