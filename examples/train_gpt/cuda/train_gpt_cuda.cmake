# SPDX-License-Identifier: Apache-2.0
# The model on GPUs. Developer builds also compile it against the stand-in CUDA (test/standin).
set(train_gpt_cuda_sources attention.cpp batch_upload.cpp block.cpp cublaslt.cpp cudnn.cpp
                           cudnn_attention.cpp cudnn_graph.cpp device_buffer.cpp fp8.cpp gpt.cpp
                           graphs.cpp linears.cpp matmul.cpp)
set(train_gpt_cuda_kernels
  kernels/attention.cu kernels/cross_entropy.cu kernels/elementwise.cu kernels/embedding.cu
  kernels/layernorm.cu kernels/quantize.cu)
list(TRANSFORM train_gpt_cuda_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM train_gpt_cuda_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)

# acc_train_gpt_cuda(target program): settings that both builds share.
function(acc_train_gpt_cuda target program)
  target_link_libraries(${target} PUBLIC train_gpt_core acc_cuda_headers
                                  PRIVATE acc_options ${CMAKE_DL_LIBS})
  target_compile_definitions(${program} PRIVATE TRAIN_GPT_CUDA)
  target_link_libraries(${program} PRIVATE ${target})
  acc_unity(${target})
endfunction()

add_library(train_gpt_cuda STATIC ${train_gpt_cuda_sources} ${train_gpt_cuda_kernels})
target_link_libraries(train_gpt_cuda PUBLIC CUDA::cudart_static)
acc_train_gpt_cuda(train_gpt_cuda train_gpt)

if(ACC_DEVELOPER)
  include(acc_standin)
  add_library(train_gpt_cuda_standin STATIC)
  acc_add_standin_cuda(train_gpt_cuda_standin
    SOURCES ${train_gpt_cuda_sources} ${train_gpt_cuda_kernels})
  add_executable(train_gpt_standin ${train_gpt_program})
  target_link_libraries(train_gpt_standin PRIVATE acc_options)
  acc_train_gpt_cuda(train_gpt_cuda_standin train_gpt_standin)
  set_target_properties(train_gpt_standin PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/standin)
endif()
