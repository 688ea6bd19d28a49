// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/attention.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/fp8.hpp"
#include "cuda/graphs.hpp"
#include "cuda/kernels.hpp"
#include "cuda/linears.hpp"
#include "cuda/matmul.hpp"
#include "data/batch.hpp"
#include "model/model_config.hpp"
#include "model/parameters.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <memory>

namespace train_gpt::cuda {

/// Stream, matrix products and working memory that all layers share, allocated once. N is the
/// largest number of rows of a batch.
template <class T>
struct Context {
  /// settings: those of the run. Throws Error(config) for fp8 on a GPU that has none.
  Context(cudaStream_t compute_stream, const ModelConfig& config, BatchShape largest,
          const acc::settings::RuntimeSettings& settings);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cudaStream_t stream;
  GraphCapture graphs;
  Matmul<T> matmul;
  std::unique_ptr<Fp8> fp8;  ///< null without mixed precision fp8
  Linears<T> linears;
  Attention<T> attention;         ///< after matmul, so that cuDNN finds cuBLASLt already loaded
  DeviceBuffer<T> wide;           ///< (N, 4C)
  DeviceBuffer<T> d_channels;     ///< (N, C)
  DeviceBuffer<float> layernorm;  ///< working memory of the layer norms' backward
};

// Access to the parameters and gradients of a unit's scope. T must be the model's compute dtype.
template <class T, class Use>
const T* parameter(const Use& use, acc::Parameter which) {
  return static_cast<const T*>(use.raw(which));
}
template <class T, class Use>
AffineValues<T> values(const Use& use, const Affine& which) {
  return {parameter<T>(use, which.weight), parameter<T>(use, which.bias)};
}
template <class T>
GradientOf<T> gradient(acc::BackwardUse& use, acc::Parameter which) {
  const acc::RawGradient raw = use.raw_grad(which);
  return {static_cast<T*>(raw.data), raw.beta};
}
template <class T>
T* gradient_to_add(acc::BackwardUse& use, acc::Parameter which) {
  return static_cast<T*>(use.raw_grad_to_add(which));
}

template <class T>
AffineGradients<T> gradients(acc::BackwardUse& use, const Affine& which) {
  return {gradient<T>(use, which.weight), gradient<T>(use, which.bias)};
}
/// Gradients to which code adds.
template <class T>
AffineGradients<T> gradients_to_add(acc::BackwardUse& use, const Affine& which) {
  return {{gradient_to_add<T>(use, which.weight), 1.0f},
          {gradient_to_add<T>(use, which.bias), 1.0f}};
}

/// Activations that a block's forward saves for its backward, in addition to its input: 16 C
/// elements of T and 4 + H floats per token. The backward recomputes nothing.
template <class T>
struct Activations {
  Activations(const ModelConfig& config, BatchShape largest);

  DeviceBuffer<float> stats;    ///< (4, N): mean and rstd of ln_1 and ln_2
  DeviceBuffer<float> log_sum;  ///< (B, H, T)
  DeviceBuffer<T> z_1;          ///< (B, T, C), normalised
  DeviceBuffer<T> qkv;          ///< (B, T, 3C)
  DeviceBuffer<T> attended;     ///< (B, T, C)
  DeviceBuffer<T> middle;       ///< (B, T, C), after the attention's residual
  DeviceBuffer<T> z_2;          ///< (B, T, C), normalised
  DeviceBuffer<T> u;            ///< (B, T, 4C), before GELU
  DeviceBuffer<T> h;            ///< (B, T, 4C), after GELU
  DeviceBuffer<T> out;          ///< (B, T, C)
};

/// One transformer block on the GPU. All work is queued on the context's stream.
template <class T>
class Block {
 public:
  /// `activations` must outlive the block. Blocks may share them if the forward of each block is
  /// recomputed right before its backward (activation checkpointing).
  /// layer: number of the block.
  Block(const BlockParameters& parameters, std::int64_t layer, const ModelConfig& config,
        BatchShape largest, Activations<T>& activations);

  [[nodiscard]] acc::Unit& unit() { return *p_.unit; }

  /// x: (B, T, C), must stay valid until the backward. It may be the output of another block in the
  /// same activations, which is then overwritten. Returns the output (B, T, C), which is part of
  /// the activations.
  const T* forward(const acc::ForwardUse& use, const T* x, BatchShape shape, Context<T>& context);

  /// dx: (B, T, C), in place: gradient of the output on entry, of the input on return.
  void backward(acc::BackwardUse& use, T* dx, BatchShape shape, Context<T>& context);

 private:
  struct Values {
    AffineValues<T> ln_1, c_attn, attn_c_proj, ln_2, c_fc, mlp_c_proj;
    bool operator==(const Values&) const = default;
  };
  struct Gradients {
    AffineGradients<T> ln_1, c_attn, attn_c_proj, ln_2, c_fc, mlp_c_proj;
    bool operator==(const Gradients&) const = default;
  };
  /// Everything that the queued work of a forward depends on, and of a backward.
  struct Forward {
    Values p;
    const T* x;
    std::int64_t batch, time;
    bool fp8;  ///< products are computed in fp8
    [[nodiscard]] BatchShape shape() const { return {batch, time}; }
    bool operator==(const Forward&) const = default;
  };
  struct Backward {
    Forward forward;
    Gradients d;
    T* dx;
    bool operator==(const Backward&) const = default;
  };
  template <class Use>
  [[nodiscard]] Forward arguments(const Use& use, const T* x, BatchShape shape,
                                  const Context<T>& context) const;
  void issue_forward(const Forward& forward, Context<T>& context);
  void issue_backward(const Backward& backward, Context<T>& context);
  void issue_backward_attention(const Backward& backward, Context<T>& context);
  void issue_backward_mlp(const Backward& backward, Context<T>& context);
  [[nodiscard]] RowStats stats(int norm) const;

  /// Number of a linear layer among those of all blocks.
  enum Layer : std::int64_t { kCAttn, kAttnCProj, kCFc, kMlpCProj, kLayers };
  [[nodiscard]] std::int64_t layer(Layer which) const { return layer_ * kLayers + which; }

  ModelConfig config_;
  std::int64_t max_rows_;
  std::int64_t layer_;
  BlockParameters p_;
  Graphed<Forward> forward_;
  Graphed<Backward> backward_;

  Activations<T>* a_;
  const T* x_ = nullptr;  // (B, T, C), the input
};

}  // namespace train_gpt::cuda
