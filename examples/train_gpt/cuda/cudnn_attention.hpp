// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cudnn_graph.hpp"
#include "cuda/device_buffer.hpp"
#include "model/attention.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <string>

namespace train_gpt::cuda::cudnn {

/// Properties for which a graph of attention is compiled.
struct AttentionGraph {
  AttentionShape shape;
  DataType type;       ///< bfloat16 or float16
  bool deterministic;  ///< of the backward; the forward always is
};

/// Compile causal attention and its gradient for the layouts of kernels.hpp. Throw Error(device) if
/// cuDNN does not support it on the target.
Plan forward_plan(const Library& api, const AttentionGraph& graph, const Target& target);
Plan backward_plan(const Library& api, const AttentionGraph& graph, const Target& target);

/// Causal attention by cuDNN, queued on one stream. All functions throw Error(device) with cuDNN's
/// reason.
class Attention {
 public:
  /// Opens cuDNN, compiles the plans for `largest` and allocates their working memory.
  Attention(cudaStream_t stream, const AttentionGraph& largest);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// True for shapes that differ from `largest` only in a smaller batch. Each needs plans of its
  /// own, which take seconds to compile, so that other lengths (as in sampling) are left to the
  /// kernels.
  [[nodiscard]] bool supports(const AttentionShape& shape) const;

  /// Arrays as in attention_forward and attention_backward of kernels.hpp, of the graph's type.
  void forward(const AttentionShape& shape, const void* qkv, void* out, float* log_sum);
  void backward(const AttentionShape& shape, const void* qkv, const void* out, const float* log_sum,
                const void* d_out, float* delta, void* dqkv);

  /// Returns the library's version and file.
  [[nodiscard]] std::string library() const { return api_.version() + " (" + api_.path + ")"; }

 private:
  struct Plans {
    Plan forward;
    Plan backward;
  };
  const Plans& plans_of(const AttentionShape& shape);
  static std::int64_t workspace_of(const Plans& plans);

  Library api_;
  AttentionGraph largest_;
  Handle handle_ = nullptr;
  std::map<std::int64_t, Plans> plans_;  // by batch
  DeviceBuffer<float> dq_sums_;          // (B, H, T, D), unless deterministic
  std::int64_t workspace_nbytes_ = 0;
  DeviceMemory workspace_;
};

}  // namespace train_gpt::cuda::cudnn
