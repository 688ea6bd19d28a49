# The CUDA language with our flags, and acc_cuda_headers: what NCCL and cuBLASLt look like. Included
# with ACC_CUDA only; a machine needs neither driver nor GPU to build.
include(find_cuda)
if(ACC_CUDA_MISSING)
  list(JOIN ACC_CUDA_MISSING "\n  " lines)
  message(FATAL_ERROR "ACC_CUDA: parts of CUDA are not here.\n  ${lines}\nscripts/deps --cuda "
                      "brings them into build/wheels; CUDA_HOME and NCCL_ROOT name other folders.")
endif()

# Machine code for A100 and H100 and what is binary compatible; PTX for all that came later.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "GPUs to compile for")
endif()
set(CMAKE_CUDA_COMPILER ${ACC_NVCC} CACHE FILEPATH "nvcc")
if(ACC_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ACC_CCACHE})
endif()
# Targets name CUDA::cudart_static: what they make loads where there is no CUDA, to say so.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
enable_language(CUDA)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
# Wheels hold libcudart.so.13 without the link that CMake asks for; only the static one is used.
cmake_path(GET ACC_NVCC PARENT_PATH nvcc_folder)
find_library(CUDA_CUDART NAMES cudart cudart_static HINTS ${nvcc_folder}/../lib NO_DEFAULT_PATH)
find_package(CUDAToolkit 13 REQUIRED)

set(cuda $<COMPILE_LANGUAGE:CUDA>)
# By hand: CMAKE_CUDA_STANDARD knows 20 only since CMake 3.26.
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
