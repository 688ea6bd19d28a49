# SPDX-License-Identifier: Apache-2.0
# Stand-in for CUDA in test/standin: kernels are compiled as C++ and run on host memory. Used by
# tests only.

# acc_add_standin_cuda(target [ADDRESS] SOURCES file.cu file.cpp ...)
# Adds sources to the existing target and links it with the stand-in runtime. A .cu file is compiled
# as C++ after the emulator's header is included; a .cpp file is compiled unchanged. nvcc may
# compile the same .cu file for another target. Every kernel runs under the sanitizer for alignment
# and array bounds, with ADDRESS under the address sanitizer too.
function(acc_add_standin_cuda target)
  cmake_parse_arguments(ARG "ADDRESS" "" "SOURCES" ${ARGN})
  set(sanitizers alignment,bounds)
  if(ARG_ADDRESS)
    string(APPEND sanitizers ,address)
  endif()
  foreach(source IN LISTS ARG_SOURCES)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    cmake_path(GET source EXTENSION LAST_ONLY extension)
    if(extension STREQUAL ".cu")
      cmake_path(GET source FILENAME name)
      set(twin ${CMAKE_CURRENT_BINARY_DIR}/${target}.standin/${name}.cpp)
      file(CONFIGURE OUTPUT ${twin}
           CONTENT "#include \"standin/cuda/cuda_host.hpp\"\n#include \"${source}\"\n")
      # Kernels are checked with the warnings of nvcc instead. They access shared memory through
      # pointers of several types, which nvcc allows and g++ with -fno-strict-aliasing.
      set_source_files_properties(${twin} PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS
        "-Wno-unknown-pragmas;-Wno-conversion;-Wno-sign-conversion;-Wno-shadow;-fno-strict-aliasing;-fsanitize=${sanitizers};-fno-sanitize-recover=all")
      target_sources(${target} PRIVATE ${twin})
    else()
      target_sources(${target} PRIVATE ${source})
    endif()
  endforeach()
  target_link_libraries(${target} PRIVATE acc::standin_cudart)
  target_link_options(${target} PUBLIC -fsanitize=${sanitizers})
endfunction()

# acc_standin_output(target NAME): builds the shared library of the target as lib/standin/NAME in
# the build folder.
function(acc_standin_output target name)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${name} SUFFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/standin)
endfunction()
