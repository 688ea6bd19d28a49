# SPDX-License-Identifier: Apache-2.0
# Enables the CUDA language with the project's flags, and defines acc_cuda_headers, the headers of
# NCCL and cuBLASLt. Included only with ACC_CUDA. Building needs neither a driver nor a GPU.
include(find_cuda)
if(ACC_CUDA_MISSING)
  list(JOIN ACC_CUDA_MISSING "\n  " lines)
  message(FATAL_ERROR "ACC_CUDA: parts of CUDA are missing.\n  ${lines}\nscripts/deps --cuda "
                      "installs them in build/wheels; CUDA_HOME and NCCL_ROOT name other folders.")
endif()

# Machine code for A100, H100 and binary compatible GPUs; PTX for all later GPUs. A quick build is not run on a GPU.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(architectures 80-real 90-real 90-virtual)
  if(ACC_QUICK_BUILD)
    set(architectures 90-real)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPUs to compile for")
endif()
set(CMAKE_CUDA_COMPILER ${ACC_NVCC} CACHE FILEPATH "nvcc")
if(ACC_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ACC_CCACHE})
endif()
# Targets link CUDA::cudart_static explicitly, so that programs and libraries can be loaded on a
# machine without CUDA and report that it is missing.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
cmake_path(GET ACC_NVCC PARENT_PATH nvcc_folder)
# nvcc searches its libraries in lib64, but wheels have them in lib. CMake's test of the compiler links them.
set(library_path $ENV{LIBRARY_PATH})
set(ENV{LIBRARY_PATH} "${nvcc_folder}/../lib")
if(library_path)
  string(APPEND ENV{LIBRARY_PATH} ":${library_path}")
endif()
enable_language(CUDA)
list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/with_ptxas_report)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
# Wheels contain libcudart.so.13 without the symbolic link libcudart.so that CMake requires. Any
# library satisfies CMake here, because only the static one is used.
find_library(CUDA_CUDART NAMES cudart cudart_static HINTS ${nvcc_folder}/../lib NO_DEFAULT_PATH)
# CMake 3.25 sets a property of this target although CUDA 13 has no such library.
if(NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit 13 REQUIRED)

set(cuda $<COMPILE_LANGUAGE:CUDA>)
# Explicit flag: CMAKE_CUDA_STANDARD supports 20 only since CMake 3.26.
target_compile_options(acc_options INTERFACE "$<${cuda}:-std=c++20;-Xcompiler=-Wall,-Wextra>")
if(ACC_WERROR)
  target_compile_options(acc_options INTERFACE
    "$<${cuda}:SHELL:-Werror all-warnings>" "$<${cuda}:-Xcompiler=-Werror>")
endif()

add_library(acc_cuda_headers INTERFACE)
target_include_directories(acc_cuda_headers SYSTEM INTERFACE
  ${ACC_NCCL_INCLUDE} ${ACC_CUBLAS_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
message(STATUS "CUDA ${CUDAToolkit_VERSION} (${ACC_NVCC}) for ${CMAKE_CUDA_ARCHITECTURES}; "
               "nccl.h in ${ACC_NCCL_INCLUDE}; cublasLt.h in ${ACC_CUBLAS_INCLUDE}")
