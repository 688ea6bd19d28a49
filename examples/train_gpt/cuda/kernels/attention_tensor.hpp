// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/attention.hpp"

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace train_gpt::cuda {

/// True if the tensor core kernels support heads with this number of channels.
bool tensor_attention_supports(std::int64_t head_dim);

/// Causal attention. qkv: (B, T, 3, H, D), out: (B, T, H, D), log_sum: (B, H, T)
void tensor_attention_forward(cudaStream_t stream, const AttentionShape& shape,
                              const __nv_bfloat16* qkv, __nv_bfloat16* out, float* log_sum);

/// Computes dqkv (B, T, 3, H, D) from d_out (B, T, H, D). Overwrites dqkv. delta: (B, H, T),
/// working memory.
void tensor_attention_backward(cudaStream_t stream, const AttentionShape& shape,
                               const __nv_bfloat16* qkv, const __nv_bfloat16* out,
                               const float* log_sum, const __nv_bfloat16* d_out, float* delta,
                               __nv_bfloat16* dqkv);

}  // namespace train_gpt::cuda
