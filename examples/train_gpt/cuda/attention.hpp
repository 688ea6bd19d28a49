// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cudnn_attention.hpp"
#include "cuda/device_buffer.hpp"
#include "model/attention.hpp"

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>

namespace train_gpt::cuda {

/// The code that computes attention.
enum class AttentionChoice {
  automatic,  ///< cuDNN, or the kernels if it is missing or refuses the shape
  cudnn,      ///< cuDNN, or an error
  kernels,    ///< the kernels of kernels.hpp
};

/// Reads TRAIN_GPT_ATTENTION (auto, cudnn or kernels). Throws Error(config).
AttentionChoice attention_choice_from_environment();

struct AttentionOptions {
  AttentionChoice choice = AttentionChoice::automatic;
  /// Results must not depend on timing. The kernels' never do; cuDNN needs 2 * B * H * T * T bytes
  /// for it, and is not used for it on GPUs newer than compute capability 9.x.
  bool deterministic = false;
};

/// Causal attention of all layers, queued on one stream. If cuDNN fails, now or later, prints the
/// reason once and uses the kernels from then on.
template <class T>
class Attention {
 public:
  /// largest: shape of the largest batch, whose working memory is allocated. Throws Error(device)
  /// if cuDNN was chosen and cannot be used.
  Attention(cudaStream_t stream, const AttentionShape& largest, AttentionOptions options);

  /// Arrays as in attention_forward and attention_backward of kernels.hpp.
  void forward(const AttentionShape& shape, const T* qkv, T* out, float* log_sum);
  void backward(const AttentionShape& shape, const T* qkv, const T* out, const float* log_sum,
                const T* d_out, T* dqkv);

  [[nodiscard]] bool uses_cudnn() const { return cudnn_ != nullptr; }

 private:
  /// Runs `compute` with cuDNN if it supports the shape. Returns false if the kernels must do it.
  template <class Compute>
  bool by_cudnn(const AttentionShape& shape, const Compute& compute);
  void leave_cudnn(std::string_view reason);

  cudaStream_t stream_;
  AttentionOptions options_;
  DeviceBuffer<float> delta_;  // (B, H, T)
  std::unique_ptr<cudnn::Attention> cudnn_;
};

}  // namespace train_gpt::cuda
