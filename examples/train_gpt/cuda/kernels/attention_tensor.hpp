// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/attention.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace train_gpt::cuda {

/// True if the tensor core kernels support heads with this number of channels.
bool tensor_attention_supports(std::int64_t head_dim);

/// Causal attention. T is __nv_bfloat16 or __half. qkv: (B, T, 3, H, D), out: (B, T, H, D),
/// log_sum: (B, H, T)
template <class T>
void tensor_attention_forward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                              T* out, float* log_sum);

/// Computes dqkv (B, T, 3, H, D) from d_out (B, T, H, D). Overwrites dqkv. delta: (B, H, T),
/// working memory.
template <class T>
void tensor_attention_backward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                               const T* out, const float* log_sum, const T* d_out, float* delta,
                               T* dqkv);

}  // namespace train_gpt::cuda
