# Toolchain of the wheels (scripts/dist.sh): zig's clang and libc++ for an old glibc, and the libraries
# in TRAINMON_TARGET_ROOT, a folder named by its architecture, instead of the machine's own.
set(root $ENV{TRAINMON_TARGET_ROOT})
get_filename_component(CMAKE_SYSTEM_PROCESSOR ${root} NAME)
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  set(CMAKE_SYSTEM_NAME Linux)  # what makes CMake say that this is cross-compiling
endif()

set(CMAKE_CXX_COMPILER ${root}/bin/c++)
set(CMAKE_AR ${root}/bin/ar)
set(CMAKE_RANLIB ${root}/bin/ranlib)
# Debian's Python headers ask for a folder of the architecture, which is there.
set(CMAKE_CXX_FLAGS_INIT "-g0 -isystem \"${root}/include\"")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-s")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-Wl,-s")

set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)  # nanobind comes with the interpreter
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
