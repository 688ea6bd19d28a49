# SPDX-License-Identifier: Apache-2.0
# libacc_cuda.so: the CUDA part of the runtime, loaded when a GPU is requested (open_device.cpp).
# Tests also build acc_cuda_sources against an emulated CUDA that uses host memory.
set(acc_cuda_sources
  src/cuda/backend.cpp
  src/cuda/cuda_device.cpp
  src/cuda/cuda_error.cpp
  src/cuda/cuda_events.cpp
  src/cuda/cuda_memory.cpp
  src/cuda/nccl/communicator.cpp
  src/cuda/nccl/nccl_api.cpp
  src/cuda/nccl/nccl_group.cpp
  src/cuda/nccl/nccl_watch.cpp
  src/cuda/nccl/registered_arena.cpp
  src/cuda/page_locked.cpp
  src/collectives/device_route.cpp
  src/device/caching_allocator.cpp)
set(acc_cuda_kernels
  src/cuda/kernels/cast.cu
  src/cuda/kernels/clamp.cu
  src/cuda/kernels/norm.cu
  src/cuda/kernels/update.cu)
list(TRANSFORM acc_cuda_sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
list(TRANSFORM acc_cuda_kernels PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)

add_library(acc_cuda MODULE ${acc_cuda_sources} ${acc_cuda_kernels})
acc_unity(acc_cuda)
target_include_directories(acc_cuda PRIVATE src include ${PROJECT_SOURCE_DIR}/rendezvous/include)
target_link_libraries(acc_cuda PRIVATE acc_options acc_cuda_headers acc::base acc::settings
                                       CUDA::cudart_static)
# No fused multiply-add, as on the CPU, so that both give bitwise equal results.
target_compile_options(acc_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>)
set(cuda_export_map ${CMAKE_CURRENT_SOURCE_DIR}/acc_cuda.map)
target_link_options(acc_cuda PRIVATE LINKER:--version-script=${cuda_export_map})
set_target_properties(acc_cuda PROPERTIES LINK_DEPENDS ${cuda_export_map})
add_dependencies(acc_runtime acc_cuda)
