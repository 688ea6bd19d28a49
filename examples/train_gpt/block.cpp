#include "block.hpp"

#include "gemm.hpp"

namespace train_gpt {
namespace {

/// dw = x^T dy, straight into the runtime's gradient. x: (N, in), dy: (N, out), dw: (in, out)
void weight_gradient(acc::BackwardUse& use, acc::Parameter weight, ConstMatrix x, ConstMatrix dy) {
  const acc::Gradient gradient = use.grad(weight);
  multiply({gradient.data, x.cols, dy.cols}, x.t(), dy, gradient.beta);
}

void bias_gradient(acc::BackwardUse& use, acc::Parameter bias, ConstMatrix dy) {
  add_column_sums(use.grad_to_add(bias), dy.data, dy.rows, dy.cols);
}

}  // namespace

Scratch::Scratch(const ModelConfig& config, BatchShape largest)
    : normalized(largest.rows() * config.dim),
      d_channels(largest.rows() * config.dim),
      wide(largest.rows() * 4 * config.dim),
      attention(largest.time) {}

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
  forward_attention(use, shape, scratch);
  forward_mlp(use, shape, scratch);
  return a_->out.data();
}

// middle = x + attention(ln_1(x) @ c_attn) @ attn.c_proj
void Block::forward_attention(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  float* z = scratch.normalized.data();  // (N, C)
  layernorm_forward(x_, use[p_.ln_1.weight], use[p_.ln_1.bias], config_.layer_norm_epsilon, z,
                    ln_1_stats(), N, C);

  add_bias(a_->qkv.data(), nullptr, use[p_.c_attn.bias], N, 3 * C);
  multiply({a_->qkv.data(), N, 3 * C}, {z, N, C}, {use[p_.c_attn.weight], C, 3 * C}, 1.0f);

  attention_forward(attention_shape(shape), a_->qkv.data(), a_->attended.data(), a_->log_sum.data(),
                    scratch.attention);

  add_bias(a_->middle.data(), x_, use[p_.attn_c_proj.bias], N, C);
  multiply({a_->middle.data(), N, C}, {a_->attended.data(), N, C},
           {use[p_.attn_c_proj.weight], C, C}, 1.0f);
}

// out = middle + gelu(ln_2(middle) @ c_fc) @ mlp.c_proj
void Block::forward_mlp(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  float* z = scratch.normalized.data();  // (N, C)
  layernorm_forward(a_->middle.data(), use[p_.ln_2.weight], use[p_.ln_2.bias],
                    config_.layer_norm_epsilon, z, ln_2_stats(), N, C);

  multiply({a_->expanded.data(), N, 4 * C}, {z, N, C}, {use[p_.c_fc.weight], C, 4 * C});
  float* h = scratch.wide.data();  // (N, 4C)
  gelu_forward(a_->expanded.data(), use[p_.c_fc.bias], h, N, 4 * C);

  add_bias(a_->out.data(), a_->middle.data(), use[p_.mlp_c_proj.bias], N, C);
  multiply({a_->out.data(), N, C}, {h, N, 4 * C}, {use[p_.mlp_c_proj.weight], 4 * C, C}, 1.0f);
}

void Block::backward(acc::BackwardUse& use, float* dx, BatchShape shape, Scratch& scratch) {
  backward_mlp(use, dx, shape, scratch);
  backward_attention(use, dx, shape, scratch);
}

void Block::backward_mlp(acc::BackwardUse& use, float* dx, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  float* wide = scratch.wide.data();      // (N, 4C): dh, then du
  float* z = scratch.normalized.data();   // (N, C)
  float* dz = scratch.d_channels.data();  // (N, C)
  float* h = a_->expanded.data();         // (N, 4C): u, then h

  multiply({wide, N, 4 * C}, {dx, N, C}, ConstMatrix(use[p_.mlp_c_proj.weight], 4 * C, C).t());
  gelu_backward(h, use[p_.c_fc.bias], wide, use.grad_to_add(p_.c_fc.bias), N, 4 * C);
  weight_gradient(use, p_.mlp_c_proj.weight, {h, N, 4 * C}, {dx, N, C});
  bias_gradient(use, p_.mlp_c_proj.bias, {dx, N, C});

  layernorm_recompute(a_->middle.data(), use[p_.ln_2.weight], use[p_.ln_2.bias], ln_2_stats(), z, N,
                      C);
  weight_gradient(use, p_.c_fc.weight, {z, N, C}, {wide, N, 4 * C});
  multiply({dz, N, C}, {wide, N, 4 * C}, ConstMatrix(use[p_.c_fc.weight], C, 4 * C).t());
  layernorm_backward(a_->middle.data(), use[p_.ln_2.weight], ln_2_stats(), dz, dx,
                     use.grad_to_add(p_.ln_2.weight), use.grad_to_add(p_.ln_2.bias), N, C);
}

void Block::backward_attention(acc::BackwardUse& use, float* dx, BatchShape shape,
                               Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  float* dqkv = scratch.wide.data();              // (N, 3C)
  float* z = scratch.normalized.data();           // (N, C)
  float* d_channels = scratch.d_channels.data();  // (N, C): d attended, then dz

  weight_gradient(use, p_.attn_c_proj.weight, {a_->attended.data(), N, C}, {dx, N, C});
  bias_gradient(use, p_.attn_c_proj.bias, {dx, N, C});
  multiply({d_channels, N, C}, {dx, N, C}, ConstMatrix(use[p_.attn_c_proj.weight], C, C).t());
  attention_backward(attention_shape(shape), a_->qkv.data(), a_->attended.data(),
                     a_->log_sum.data(), d_channels, dqkv, scratch.attention);

  layernorm_recompute(x_, use[p_.ln_1.weight], use[p_.ln_1.bias], ln_1_stats(), z, N, C);
  weight_gradient(use, p_.c_attn.weight, {z, N, C}, {dqkv, N, 3 * C});
  bias_gradient(use, p_.c_attn.bias, {dqkv, N, 3 * C});
  multiply({d_channels, N, C}, {dqkv, N, 3 * C}, ConstMatrix(use[p_.c_attn.weight], C, 3 * C).t());
  layernorm_backward(x_, use[p_.ln_1.weight], ln_1_stats(), d_channels, dx,
                     use.grad_to_add(p_.ln_1.weight), use.grad_to_add(p_.ln_1.bias), N, C);
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
