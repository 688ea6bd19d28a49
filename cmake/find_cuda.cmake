# SPDX-License-Identifier: Apache-2.0
# Finds the build dependencies of the CUDA back end: nvcc with its runtime, and the headers of NCCL
# and cuBLASLt (both libraries are opened at run time, so the headers are sufficient). Searches
# named folders, the system, and Python wheels. Sets ACC_NVCC, ACC_NCCL_INCLUDE, ACC_CUBLAS_INCLUDE
# and ACC_CUDA_MISSING, a list of messages. `cmake -P` on this file prints these messages;
# scripts/deps and scripts/test match their beginnings to decide what to install or skip.
cmake_minimum_required(VERSION 3.25)

# Sets `out` to the folders in which the Python installation may have the wheels.
function(acc_find_wheels out)
  set(python $ENV{ACC_TEST_PYTHON})
  if(NOT python)
    find_program(ACC_PYTHON NAMES python3 PATHS /usr/local/bin /usr/bin)
    set(python ${ACC_PYTHON})
  endif()
  set(folders "")
  if(python)
    execute_process(
      COMMAND ${python} -c
        "import site, sysconfig; print(';'.join([sysconfig.get_paths()['purelib'], site.getusersitepackages(), *site.getsitepackages()]))"
      OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  list(REMOVE_DUPLICATES folders)
  set(${out} ${folders} PARENT_SCOPE)
endfunction()

get_filename_component(checkout ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
acc_find_wheels(wheel_folders)
set(cuda_roots $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT})
set(nccl_roots $ENV{NCCL_ROOT} $ENV{NCCL_HOME} ${NCCL_ROOT})
set(wheels ${checkout}/build/wheels ${wheel_folders})
list(TRANSFORM wheels APPEND /nvidia/cu13 OUTPUT_VARIABLE wheel_cuda)
list(TRANSFORM wheels APPEND /nvidia/nccl OUTPUT_VARIABLE wheel_nccl)

if(CMAKE_CUDA_COMPILER)
  set(ACC_NVCC ${CMAKE_CUDA_COMPILER})
endif()
# Search order: folders named by the user, the system, wheels.
find_program(ACC_NVCC NAMES $ENV{CUDACXX} nvcc
  HINTS ${cuda_roots} PATH_SUFFIXES bin NO_DEFAULT_PATH)
find_program(ACC_NVCC nvcc PATHS /usr/local/cuda/bin /usr/local/bin /usr/bin)
find_program(ACC_NVCC nvcc PATHS ${wheel_cuda} PATH_SUFFIXES bin NO_DEFAULT_PATH)
set(system_roots /usr/local/cuda /usr/local /usr)
find_path(ACC_NCCL_INCLUDE nccl.h
  PATHS ${nccl_roots} ${cuda_roots} ${system_roots} ${wheel_nccl}
  PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(ACC_CUBLAS_INCLUDE cublasLt.h
  PATHS ${cuda_roots} ${system_roots} ${wheel_cuda} PATH_SUFFIXES include NO_DEFAULT_PATH)

# acc_cuda_missing(WHAT PATHS...): appends a message that lists the searched folders.
set(ACC_CUDA_MISSING "")
function(acc_cuda_missing what)
  list(REMOVE_DUPLICATES ARGN)
  list(JOIN ARGN ", " places)
  set(ACC_CUDA_MISSING ${ACC_CUDA_MISSING} "${what} is in none of: ${places}" PARENT_SCOPE)
endfunction()
if(NOT ACC_NVCC)
  acc_cuda_missing("nvcc" PATH ${cuda_roots} ${system_roots} ${wheel_cuda})
endif()
if(NOT ACC_NCCL_INCLUDE)
  acc_cuda_missing("nccl.h" ${nccl_roots} ${cuda_roots} ${system_roots} ${wheel_nccl})
endif()
if(NOT ACC_CUBLAS_INCLUDE)
  acc_cuda_missing("cublasLt.h" ${cuda_roots} ${system_roots} ${wheel_cuda})
endif()

if(CMAKE_SCRIPT_MODE_FILE)
  foreach(sentence IN LISTS ACC_CUDA_MISSING)
    message("${sentence}")
  endforeach()
endif()
