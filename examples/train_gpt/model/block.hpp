// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/batch.hpp"
#include "model/attention.hpp"
#include "model/buffer.hpp"
#include "model/kernels.hpp"
#include "model/model_config.hpp"
#include "model/parameters.hpp"
#include "model/typed_gemm.hpp"
#include "model/unit_values.hpp"

#include <acc/runtime.hpp>

#include <cstdint>

namespace train_gpt {

/// Working memory that all layers share, allocated once. N is the largest number of rows of a
/// batch. logits: number of logits that exist at the same time.
struct Scratch {
  Scratch(const ModelConfig& config, BatchShape largest, acc::DType compute_dtype,
          std::int64_t logits);

  Buffer normalized;  ///< (N, C)
  Buffer d_channels;  ///< (N, C)
  Buffer wide;        ///< (N, 4C)
  AttentionScratch attention;
  UnitValues values;  ///< parameters and gradients of the current block
  TypedGemm gemm;

  [[nodiscard]] std::int64_t nbytes() const;
};

/// Activations that a block's forward saves for its backward, in addition to its input: 10 C + H +
/// 4 floats per token. The backward recomputes everything else.
struct Activations {
  Activations(const ModelConfig& config, BatchShape largest);

  Buffer stats;     ///< (4, N): mean and rstd of ln_1 and ln_2
  Buffer qkv;       ///< (B, T, 3C)
  Buffer log_sum;   ///< (B, H, T)
  Buffer attended;  ///< (B, T, C)
  Buffer middle;    ///< (B, T, C), after the attention's residual
  Buffer expanded;  ///< (B, T, 4C), before bias and GELU; the backward overwrites it
  Buffer out;       ///< (B, T, C)

  [[nodiscard]] std::int64_t nbytes() const;
};

/// One transformer block: x + attention(ln_1(x)), then x + mlp(ln_2(x)). One unit of the runtime.
class Block {
 public:
  /// `activations` must outlive the block. Blocks may share them if the forward of each block is
  /// recomputed right before its backward (activation checkpointing).
  Block(const BlockParameters& parameters, const ModelConfig& config, BatchShape largest,
        Activations& activations);

  [[nodiscard]] acc::Unit& unit() { return *p_.unit; }

  /// x: (B, T, C), must stay valid until the backward. It may be the output of another block in the
  /// same activations, which is then overwritten. Returns the output (B, T, C), which is part of
  /// the activations.
  const float* forward(const acc::ForwardUse& use, const float* x, BatchShape shape,
                       Scratch& scratch);

  /// dx: (B, T, C), in place: gradient of the output on entry, of the input on return.
  void backward(acc::BackwardUse& use, float* dx, BatchShape shape, Scratch& scratch);

 private:
  void forward_attention(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch);
  void forward_mlp(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch);
  void backward_attention(acc::BackwardUse& use, float* dx, BatchShape shape, Scratch& scratch);
  void backward_mlp(acc::BackwardUse& use, float* dx, BatchShape shape, Scratch& scratch);
  [[nodiscard]] AttentionShape attention_shape(BatchShape shape) const;
  [[nodiscard]] RowStats ln_1_stats() const;
  [[nodiscard]] RowStats ln_2_stats() const;

  ModelConfig config_;
  std::int64_t max_rows_;
  BlockParameters p_;

  Activations* a_;
  const float* x_ = nullptr;  // (B, T, C), the input
};

}  // namespace train_gpt
