# Settings every target shares, and the three functions the folders use to declare themselves.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_package(Threads REQUIRED)

# A compiler cache is used where there is one: a clone that was built before builds in a minute.
if(NOT CMAKE_TOOLCHAIN_FILE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER
   AND NOT DEFINED ENV{CMAKE_CXX_COMPILER_LAUNCHER})
  find_program(TRAINMON_CCACHE ccache)
  if(TRAINMON_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TRAINMON_CCACHE})
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "trainmon needs g++ 12 or newer; ${CMAKE_CXX_COMPILER} is "
    "${CMAKE_CXX_COMPILER_VERSION}. Name another with -DCMAKE_CXX_COMPILER or CXX=.")
endif()

# trainmon_require(GTest_FOUND "GoogleTest" libgtest-dev): stops with the package to install.
function(trainmon_require found what package)
  if(NOT ${found})
    message(FATAL_ERROR "trainmon needs ${what}, which CMake did not find.\n"
      "  Debian and Ubuntu: apt-get install ${package}")
  endif()
endfunction()

configure_file(${PROJECT_SOURCE_DIR}/include/trainmon/version.h.in
               ${PROJECT_BINARY_DIR}/include/trainmon/version.h @ONLY)

add_library(trainmon_options INTERFACE)
target_include_directories(trainmon_options INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# No contraction: a fused multiply-add would make sums depend on the instruction set.
target_compile_options(trainmon_options INTERFACE
  -Wall -Wextra -Wconversion -ffp-contract=off)
# Other compilers warn of other things: an error for developers only.
if(TRAINMON_BUILD_TESTS)
  target_compile_options(trainmon_options INTERFACE -Werror)
endif()
target_link_libraries(trainmon_options INTERFACE Threads::Threads)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees an overlap in "literal" + std::string that is not there (GCC bug 105651).
  target_compile_options(trainmon_options INTERFACE -Wno-restrict)
endif()
if(TRAINMON_FAILPOINTS)
  target_compile_definitions(trainmon_options INTERFACE TRAINMON_FAILPOINTS=1)
endif()
if(TRAINMON_SANITIZE)
  target_compile_options(trainmon_options INTERFACE
    -fsanitize=${TRAINMON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The instrumentation hides initialisations from this warning (GCC documents it for -fsanitize);
    # plain builds keep it.
    target_compile_options(trainmon_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  target_link_options(trainmon_options INTERFACE -fsanitize=${TRAINMON_SANITIZE})
endif()
if(TRAINMON_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TRAINMON_FUZZ needs clang, for libFuzzer: apt-get install clang-19 "
      "libclang-rt-19-dev, then -DCMAKE_CXX_COMPILER=clang++-19; this is ${CMAKE_CXX_COMPILER}")
  endif()
  target_compile_options(trainmon_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(trainmon_options INTERFACE -fsanitize=address,undefined)
endif()

# Most of the time of one file goes into headers, so several files of a target are compiled at a time.
option(TRAINMON_UNITY "compile several files of a folder at a time" ON)
set(TRAINMON_UNITY_FILES 7 CACHE STRING "so many; more take less time in all, and more memory")
function(trainmon_unity target)
  if(TRAINMON_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TRAINMON_UNITY_FILES})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Warns of a type in a file that is included; here this file is a source.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# trainmon_library(read DEPENDS base): static library trainmon_read of all .cpp files of the folder, or of
# SOURCES where it names some.
function(trainmon_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT arg_SOURCES)
    file(GLOB arg_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  add_library(trainmon_${name} STATIC ${arg_SOURCES})
  target_link_libraries(trainmon_${name} PUBLIC trainmon_options)
  trainmon_unity(trainmon_${name})
  foreach(dependency ${arg_DEPENDS})
    target_link_libraries(trainmon_${name} PUBLIC trainmon_${dependency})
  endforeach()
endfunction()

# trainmon_test(queue SOURCES queue_test.cpp DEPENDS pipe LIBRARIES SQLite::SQLite3): GoogleTest
# program queue_test over folders of ours and outside libraries. With ONE_THREAD nothing in it starts a
# thread, and it is left out under ThreadSanitizer; a thread would end it.
function(trainmon_test name)
  cmake_parse_arguments(arg "ONE_THREAD" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  if(arg_ONE_THREAD AND TRAINMON_SANITIZE STREQUAL "thread")
    return()
  endif()
  add_executable(${name}_test ${arg_SOURCES})
  if(arg_ONE_THREAD AND NOT TRAINMON_SANITIZE)
    target_sources(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests/cpp/one_thread.cpp)
  endif()
  trainmon_unity(${name}_test)
  # Compiling a test takes far longer than running it. What it tests is optimised as ever.
  target_compile_options(${name}_test PRIVATE -O1 -g1)
  target_link_libraries(${name}_test PRIVATE trainmon_options GTest::gtest GTest::gtest_main ${arg_LIBRARIES})
  foreach(dependency ${arg_DEPENDS})
    target_link_libraries(${name}_test PRIVATE trainmon_${dependency})
  endforeach()
  add_test(NAME ${name} COMMAND ${name}_test)
  add_dependencies(cpp_tests ${name}_test)
endfunction()
