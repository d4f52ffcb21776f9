# The CUDA kernels: compiled by nvcc to a fat binary that is part of the library. The rest of the
# backend is plain C++ and finds the driver when it runs, so no CUDA library is linked.
set(TRAINMON_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (when nvcc is found), ON or OFF")
set_property(CACHE TRAINMON_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT TRAINMON_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TRAINMON_CUDA is \"${TRAINMON_CUDA}\"; valid are AUTO, ON and OFF")
endif()

set(summary "off (TRAINMON_CUDA=OFF)")
set(with_cuda FALSE)
if(NOT TRAINMON_CUDA STREQUAL "OFF")
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS
    ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13/bin  # scripts/cuda_compiler.sh
    $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  # It only reads the headers of this compiler: the image is the same with another that nvcc knows.
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER} CACHE FILEPATH "compiler that nvcc starts")
  set(why "nvcc was not found")
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_says
      RESULT_VARIABLE nvcc_failed ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${nvcc_says}")
    set(nvcc_version ${CMAKE_MATCH_1})
    set(why "${CMAKE_CUDA_COMPILER} is CUDA \"${nvcc_version}\", 12.0 or newer is needed")
    if(NOT nvcc_failed AND nvcc_version AND NOT nvcc_version VERSION_LESS 12.0)
      # An installation may lack headers, or not know this host compiler.
      set(probe ${CMAKE_CURRENT_BINARY_DIR}/probe.cu)
      file(WRITE ${probe} "#include <cstddef>\n__global__ void probe(int* to) { *to = 1; }\n")
      execute_process(COMMAND ${CMAKE_CUDA_COMPILER} -fatbin -std=c++20 -ccbin ${CMAKE_CUDA_HOST_COMPILER}
        -o ${probe}.fatbin ${probe} RESULT_VARIABLE nvcc_failed OUTPUT_QUIET ERROR_VARIABLE why)
      string(REGEX MATCH "[^\n]*(error|fatal)[^\n]*" first "${why}")
      set(why "${CMAKE_CUDA_COMPILER} does not compile: ${first}")
      if(NOT nvcc_failed)
        set(with_cuda TRUE)
      endif()
    endif()
  endif()
  if(NOT with_cuda AND TRAINMON_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRAINMON_CUDA=ON, but ${why}. Install the CUDA toolkit, or name nvcc with "
      "-DCMAKE_CUDA_COMPILER=/path/to/nvcc.")
  endif()
  set(summary "off (${why})")
endif()

if(with_cuda)
  set(newest 90)
  if(NOT nvcc_version VERSION_LESS 12.8)
    set(newest 90 100 120)
  endif()
  # Compute capabilities to compile for; the last one is added as PTX for newer devices. Not kept in
  # the cache, so that a folder configured before follows this list.
  if(NOT DEFINED TRAINMON_CUDA_ARCHITECTURES)
    set(TRAINMON_CUDA_ARCHITECTURES 80 ${newest})
  endif()
  set(codes)
  set(names)
  foreach(architecture ${TRAINMON_CUDA_ARCHITECTURES})
    list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
    list(APPEND names sm_${architecture})
    set(last ${architecture})
  endforeach()
  list(APPEND codes -gencode arch=compute_${last},code=compute_${last})
  list(JOIN names " " names)
  set(sources ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
  foreach(kernel measure measure_checked)
    set(${kernel}_image ${CMAKE_CURRENT_BINARY_DIR}/${kernel}.fatbin)
    add_custom_command(OUTPUT ${${kernel}_image}
      COMMAND ${CMAKE_CUDA_COMPILER} -fatbin -std=c++20 -O3 --expt-relaxed-constexpr
        -ccbin ${CMAKE_CUDA_HOST_COMPILER} -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
        ${codes} -o ${${kernel}_image} ${sources}/${kernel}.cu
      DEPENDS ${sources}/${kernel}.cu ${sources}/kernel.h ${sources}/careful.h ${sources}/sums.h
        ${sources}/check_sums.h ${sources}/element.h ${sources}/work.h
        ${PROJECT_SOURCE_DIR}/src/stats/check_keys.h ${PROJECT_SOURCE_DIR}/src/model/both.h
        ${PROJECT_SOURCE_DIR}/src/model/merge.h ${PROJECT_SOURCE_DIR}/src/model/state_fields.h
        ${PROJECT_SOURCE_DIR}/include/trainmon/stat.h ${PROJECT_SOURCE_DIR}/include/trainmon/tensor.h
      COMMENT "CUDA kernel ${kernel} for ${names}" VERBATIM)
  endforeach()
  target_sources(trainmon_stats PRIVATE cuda/image.cpp)
  set_source_files_properties(cuda/image.cpp PROPERTIES
    OBJECT_DEPENDS "${measure_image};${measure_checked_image}")
  set_property(SOURCE cuda/image.cpp PROPERTY COMPILE_DEFINITIONS
    TRAINMON_CUDA_IMAGE="${measure_image}" TRAINMON_CUDA_CHECKED_IMAGE="${measure_checked_image}")
  set(summary "${names} (CUDA ${nvcc_version})")
else()
  set(names "")
  target_sources(trainmon_stats PRIVATE no_cuda/image.cpp)
endif()
set_property(SOURCE cuda/presence.cpp PROPERTY COMPILE_DEFINITIONS
  TRAINMON_CUDA_ARCHITECTURES="${names}")
message(STATUS "CUDA kernels: ${summary}")
