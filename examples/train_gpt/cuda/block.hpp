#pragma once

#include "../batch.hpp"
#include "../model_config.hpp"
#include "../parameters.hpp"
#include "device_buffer.hpp"
#include "kernels.hpp"
#include "matmul.hpp"

#include <acc/runtime.hpp>

#include <cstdint>

namespace train_gpt::cuda {

/// What all layers compute with and in, allocated once. N is the most rows of a batch.
template <class T>
struct Context {
  Context(cudaStream_t compute_stream, const ModelConfig& config, BatchShape largest);

  cudaStream_t stream;
  Matmul<T> matmul;
  DeviceBuffer<T> wide;           ///< (N, 4C)
  DeviceBuffer<T> d_channels;     ///< (N, C)
  DeviceBuffer<float> delta;      ///< (B, H, T)
  DeviceBuffer<float> layernorm;  ///< scratch of its backward
};

/// What a unit's scope holds, in the model's compute dtype.
template <class T, class Use>
const T* parameter(const Use& use, acc::Parameter which) {
  return static_cast<const T*>(use.raw(which));
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

/// All that a block's forward leaves for its backward, beside its input, so that nothing is
/// computed twice: 16 C elements of T and 4 + H floats a token.
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
  DeviceBuffer<T> u;            ///< (B, T, 4C), before gelu
  DeviceBuffer<T> h;            ///< (B, T, 4C), after it
  DeviceBuffer<T> out;          ///< (B, T, C)
};

/// One transformer block on the GPU.
template <class T>
class Block {
 public:
  /// `activations` outlive it. Blocks may share them where the forward of each is computed again
  /// just before its backward.
  Block(const BlockParameters& parameters, const ModelConfig& config, BatchShape largest,
        Activations<T>& activations);

  [[nodiscard]] acc::Unit& unit() { return *p_.unit; }

  /// x: (B, T, C), alive until the backward; it may be the output of another block in the same
  /// activations, which is then overwritten. Returns the block's output (B, T, C) in them.
  const T* forward(const acc::ForwardUse& use, const T* x, BatchShape shape, Context<T>& context);

  /// dx: (B, T, C) holds the gradient of the output and becomes that of the input.
  void backward(acc::BackwardUse& use, T* dx, BatchShape shape, Context<T>& context);

 private:
  void backward_attention(acc::BackwardUse& use, T* dx, BatchShape shape, Context<T>& context);
  void backward_mlp(acc::BackwardUse& use, T* dx, BatchShape shape, Context<T>& context);
  [[nodiscard]] AttentionShape attention_shape(BatchShape shape) const;
  [[nodiscard]] RowStats stats(int norm) const;

  ModelConfig config_;
  std::int64_t max_rows_;
  BlockParameters p_;

  Activations<T>* a_;
  const T* x_ = nullptr;  // (B, T, C), the input
};

}  // namespace train_gpt::cuda
