# The stand-in CUDA of test/standin: kernels compiled as C++ and run on host memory. Tests only.

# acc_add_standin_cuda(target SOURCES file.cu file.cpp ...)
# Adds sources to `target`, which exists, and links it with the stand-in runtime: .cu files are
# compiled as C++ with the emulator's header before them, .cpp files as they are. The same .cu file
# may be compiled by nvcc for another target.
function(acc_add_standin_cuda target)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  foreach(source IN LISTS ARG_SOURCES)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    cmake_path(GET source EXTENSION LAST_ONLY extension)
    if(extension STREQUAL ".cu")
      cmake_path(GET source FILENAME name)
      set(twin ${CMAKE_CURRENT_BINARY_DIR}/${target}.standin/${name}.cpp)
      file(CONFIGURE OUTPUT ${twin}
           CONTENT "#include \"standin/cuda/cuda_host.hpp\"\n#include \"${source}\"\n")
      # nvcc's warnings are the ones that count for kernels.
      set_source_files_properties(${twin} PROPERTIES COMPILE_OPTIONS
        "-Wno-unknown-pragmas;-Wno-conversion;-Wno-sign-conversion;-Wno-shadow")
      target_sources(${target} PRIVATE ${twin})
    else()
      target_sources(${target} PRIVATE ${source})
    endif()
  endforeach()
  target_link_libraries(${target} PRIVATE acc::standin_cudart)
endfunction()

# acc_standin_output(target NAME): its shared library is lib/standin/NAME under the build folder.
function(acc_standin_output target name)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${name} SUFFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/standin)
endfunction()
