// SPDX-License-Identifier: Apache-2.0
#include "model/block.hpp"

#include <algorithm>

namespace train_gpt {
namespace {

// Residual additions are fused into the matrix products: the output is initialised with the
// residual and the bias, and the product is added to it (beta = 1).

void bias_gradient(UnitValues& values, acc::BackwardUse& use, acc::Parameter bias, ConstMatrix dy) {
  add_column_sums(values.gradient(use, bias, dy.cols).to_add(), dy.data, dy.rows, dy.cols);
}

}  // namespace

Scratch::Scratch(const ModelConfig& config, BatchShape largest, acc::DType compute_dtype,
                 std::int64_t logits)
    : normalized(largest.rows() * config.dim),
      d_channels(largest.rows() * config.dim),
      wide(largest.rows() * 4 * config.dim),
      attention(largest.time),
      values(compute_dtype),
      gemm(compute_dtype, std::max(largest.rows() * 4 * config.dim, logits)) {}

std::int64_t Scratch::nbytes() const {
  return normalized.nbytes() + d_channels.nbytes() + wide.nbytes();
}

Activations::Activations(const ModelConfig& config, BatchShape largest)
    : stats(4 * largest.rows()),
      qkv(largest.rows() * 3 * config.dim),
      log_sum(largest.rows() * config.heads),
      attended(largest.rows() * config.dim),
      middle(largest.rows() * config.dim),
      expanded(largest.rows() * 4 * config.dim),
      out(largest.rows() * config.dim) {}

std::int64_t Activations::nbytes() const {
  return stats.nbytes() + qkv.nbytes() + log_sum.nbytes() + attended.nbytes() + middle.nbytes() +
         expanded.nbytes() + out.nbytes();
}

Block::Block(const BlockParameters& parameters, const ModelConfig& config, BatchShape largest,
             Activations& activations)
    : config_(config), max_rows_(largest.rows()), p_(parameters), a_(&activations) {}

const float* Block::forward(const acc::ForwardUse& use, const float* x, BatchShape shape,
                            Scratch& scratch) {
  x_ = x;
  scratch.values.begin();
  forward_attention(use, shape, scratch);
  forward_mlp(use, shape, scratch);
  return a_->out.data();
}

// middle = x + attention(ln_1(x) @ c_attn) @ attn.c_proj. Saves qkv, the attention's result and its
// log_sum; ln_1(x) is recomputed in the backward.
void Block::forward_attention(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  UnitValues& values = scratch.values;
  TypedGemm& gemm = scratch.gemm;
  float* z = scratch.normalized.data();  // (N, C)
  layernorm_forward(x_, values(use, p_.ln_1.weight, C), values(use, p_.ln_1.bias, C),
                    config_.layer_norm_epsilon, z, ln_1_stats(), N, C);

  add_bias(a_->qkv.data(), nullptr, values(use, p_.c_attn.bias, 3 * C), N, 3 * C);
  gemm.apply({a_->qkv.data(), N, 3 * C}, gemm.input({z, N, C}),
             weight(use, p_.c_attn.weight, C, 3 * C), 1.0f);

  attention_forward(attention_shape(shape), a_->qkv.data(), a_->attended.data(), a_->log_sum.data(),
                    scratch.attention);

  add_bias(a_->middle.data(), x_, values(use, p_.attn_c_proj.bias, C), N, C);
  gemm.apply({a_->middle.data(), N, C}, gemm.input({a_->attended.data(), N, C}),
             weight(use, p_.attn_c_proj.weight, C, C), 1.0f);
}

// out = middle + gelu(ln_2(middle) @ c_fc) @ mlp.c_proj. Saves the input of GELU without its bias;
// ln_2(middle) and GELU's output are recomputed in the backward.
void Block::forward_mlp(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  UnitValues& values = scratch.values;
  TypedGemm& gemm = scratch.gemm;
  float* z = scratch.normalized.data();  // (N, C)
  layernorm_forward(a_->middle.data(), values(use, p_.ln_2.weight, C), values(use, p_.ln_2.bias, C),
                    config_.layer_norm_epsilon, z, ln_2_stats(), N, C);

  gemm.apply({a_->expanded.data(), N, 4 * C}, gemm.input({z, N, C}),
             weight(use, p_.c_fc.weight, C, 4 * C));
  float* h = scratch.wide.data();  // (N, 4C)
  gelu_forward(a_->expanded.data(), values(use, p_.c_fc.bias, 4 * C), h, N, 4 * C);

  add_bias(a_->out.data(), a_->middle.data(), values(use, p_.mlp_c_proj.bias, C), N, C);
  gemm.apply({a_->out.data(), N, C}, gemm.input({h, N, 4 * C}),
             weight(use, p_.mlp_c_proj.weight, 4 * C, C), 1.0f);
}

void Block::backward(acc::BackwardUse& use, float* dx, BatchShape shape, Scratch& scratch) {
  scratch.values.begin();
  backward_mlp(use, dx, shape, scratch);
  backward_attention(use, dx, shape, scratch);
  scratch.values.finish(use);
}

// Order: dh = dx @ c_proj^T; GELU's backward turns dh into du and u into h, both in place; then the
// gradients of c_proj (from h) and c_fc (from z and du); dz; at last the layer norm adds to dx. The
// residual path needs no work, because dx already is its gradient.
void Block::backward_mlp(acc::BackwardUse& use, float* dx, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  UnitValues& values = scratch.values;
  TypedGemm& gemm = scratch.gemm;
  float* wide = scratch.wide.data();      // (N, 4C): dh, then du
  float* z = scratch.normalized.data();   // (N, C)
  float* dz = scratch.d_channels.data();  // (N, C)
  float* h = a_->expanded.data();         // (N, 4C): u, then h

  Operand dy = gemm.gradient({dx, N, C});
  gemm.apply({wide, N, 4 * C}, dy, weight(use, p_.mlp_c_proj.weight, 4 * C, C).t());
  gelu_backward(h, values(use, p_.c_fc.bias, 4 * C), wide,
                values.gradient(use, p_.c_fc.bias, 4 * C).to_add(), N, 4 * C);
  gemm.weight_gradient(use, p_.mlp_c_proj.weight, gemm.input({h, N, 4 * C}), dy);
  bias_gradient(values, use, p_.mlp_c_proj.bias, {dx, N, C});

  layernorm_recompute(a_->middle.data(), values(use, p_.ln_2.weight, C),
                      values(use, p_.ln_2.bias, C), ln_2_stats(), z, N, C);
  dy = gemm.gradient({wide, N, 4 * C});
  gemm.weight_gradient(use, p_.c_fc.weight, gemm.input({z, N, C}), dy);
  gemm.apply({dz, N, C}, dy, weight(use, p_.c_fc.weight, C, 4 * C).t());
  layernorm_backward(a_->middle.data(), values(use, p_.ln_2.weight, C), ln_2_stats(), dz, dx,
                     values.gradient(use, p_.ln_2.weight, C).to_add(),
                     values.gradient(use, p_.ln_2.bias, C).to_add(), N, C);
}

// d_channels is used twice: first for the gradient of the attention's result, then for that of
// ln_1's output.
void Block::backward_attention(acc::BackwardUse& use, float* dx, BatchShape shape,
                               Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  UnitValues& values = scratch.values;
  TypedGemm& gemm = scratch.gemm;
  float* dqkv = scratch.wide.data();              // (N, 3C)
  float* z = scratch.normalized.data();           // (N, C)
  float* d_channels = scratch.d_channels.data();  // (N, C): d attended, then dz

  Operand dy = gemm.gradient({dx, N, C});
  gemm.weight_gradient(use, p_.attn_c_proj.weight, gemm.input({a_->attended.data(), N, C}), dy);
  bias_gradient(values, use, p_.attn_c_proj.bias, {dx, N, C});
  gemm.apply({d_channels, N, C}, dy, weight(use, p_.attn_c_proj.weight, C, C).t());
  attention_backward(attention_shape(shape), a_->qkv.data(), a_->attended.data(),
                     a_->log_sum.data(), d_channels, dqkv, scratch.attention);

  layernorm_recompute(x_, values(use, p_.ln_1.weight, C), values(use, p_.ln_1.bias, C),
                      ln_1_stats(), z, N, C);
  dy = gemm.gradient({dqkv, N, 3 * C});
  gemm.weight_gradient(use, p_.c_attn.weight, gemm.input({z, N, C}), dy);
  bias_gradient(values, use, p_.c_attn.bias, {dqkv, N, 3 * C});
  gemm.apply({d_channels, N, C}, dy, weight(use, p_.c_attn.weight, C, 3 * C).t());
  layernorm_backward(x_, values(use, p_.ln_1.weight, C), ln_1_stats(), d_channels, dx,
                     values.gradient(use, p_.ln_1.weight, C).to_add(),
                     values.gradient(use, p_.ln_1.bias, C).to_add(), N, C);
}

AttentionShape Block::attention_shape(BatchShape shape) const {
  return {shape.batch, shape.time, config_.heads, config_.head_dim()};
}

RowStats Block::ln_1_stats() const {
  return {a_->stats.data(), a_->stats.data() + max_rows_};
}

RowStats Block::ln_2_stats() const {
  return {a_->stats.data() + 2 * max_rows_, a_->stats.data() + 3 * max_rows_};
}

}  // namespace train_gpt
