#include "block.hpp"

#include "gemm.hpp"

#include <cmath>
#include <string>

namespace train_gpt {
namespace {

constexpr float kInitialStddev = 0.02f;

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

Block::Block(acc::Model& model, const ModelConfig& config, std::int64_t layer, BatchShape largest)
    : config_(config),
      max_rows_(largest.rows()),
      unit_(model.unit("transformer.h." + std::to_string(layer), "Block")),
      stats_(4 * max_rows_),
      qkv_(max_rows_ * 3 * config.dim),
      log_sum_(max_rows_ * config.heads),
      attended_(max_rows_ * config.dim),
      middle_(max_rows_ * config.dim),
      expanded_(max_rows_ * 4 * config.dim),
      out_(max_rows_ * config.dim) {
  const std::int64_t C = config.dim;
  // The two projections into the residual stream start smaller, since 2L of them are summed.
  const float residual_stddev =
      kInitialStddev / std::sqrt(2.0f * static_cast<float>(config.layers));
  const auto norm = [&](const std::string& name) -> Affine {
    return {unit_.parameter(name + ".weight", {C}, acc::ones(), {.weight_decay = false}),
            unit_.parameter(name + ".bias", {C}, acc::zeros(), {.weight_decay = false})};
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          float stddev) -> Affine {
    return {unit_.parameter(name + ".weight", {in, out}, acc::normal(stddev)),
            unit_.parameter(name + ".bias", {out}, acc::zeros(), {.weight_decay = false})};
  };
  ln_1_ = norm("ln_1");
  c_attn_ = linear("attn.c_attn", C, 3 * C, kInitialStddev);
  attn_c_proj_ = linear("attn.c_proj", C, C, residual_stddev);
  ln_2_ = norm("ln_2");
  c_fc_ = linear("mlp.c_fc", C, 4 * C, kInitialStddev);
  mlp_c_proj_ = linear("mlp.c_proj", 4 * C, C, residual_stddev);
}

const float* Block::forward(const acc::ForwardUse& use, const float* x, BatchShape shape,
                            Scratch& scratch) {
  x_ = x;
  forward_attention(use, shape, scratch);
  forward_mlp(use, shape, scratch);
  return out_.data();
}

// middle = x + attention(ln_1(x) @ c_attn) @ attn.c_proj
void Block::forward_attention(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  float* z = scratch.normalized.data();  // (N, C)
  layernorm_forward(x_, use[ln_1_.weight], use[ln_1_.bias], config_.layer_norm_epsilon, z,
                    ln_1_stats(), N, C);

  add_bias(qkv_.data(), nullptr, use[c_attn_.bias], N, 3 * C);
  multiply({qkv_.data(), N, 3 * C}, {z, N, C}, {use[c_attn_.weight], C, 3 * C}, 1.0f);

  attention_forward(attention_shape(shape), qkv_.data(), attended_.data(), log_sum_.data(),
                    scratch.attention);

  add_bias(middle_.data(), x_, use[attn_c_proj_.bias], N, C);
  multiply({middle_.data(), N, C}, {attended_.data(), N, C}, {use[attn_c_proj_.weight], C, C},
           1.0f);
}

// out = middle + gelu(ln_2(middle) @ c_fc) @ mlp.c_proj
void Block::forward_mlp(const acc::ForwardUse& use, BatchShape shape, Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  float* z = scratch.normalized.data();  // (N, C)
  layernorm_forward(middle_.data(), use[ln_2_.weight], use[ln_2_.bias], config_.layer_norm_epsilon,
                    z, ln_2_stats(), N, C);

  multiply({expanded_.data(), N, 4 * C}, {z, N, C}, {use[c_fc_.weight], C, 4 * C});
  float* h = scratch.wide.data();  // (N, 4C)
  gelu_forward(expanded_.data(), use[c_fc_.bias], h, N, 4 * C);

  add_bias(out_.data(), middle_.data(), use[mlp_c_proj_.bias], N, C);
  multiply({out_.data(), N, C}, {h, N, 4 * C}, {use[mlp_c_proj_.weight], 4 * C, C}, 1.0f);
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
  float* h = expanded_.data();            // (N, 4C): u, then h

  multiply({wide, N, 4 * C}, {dx, N, C}, ConstMatrix(use[mlp_c_proj_.weight], 4 * C, C).t());
  gelu_backward(h, use[c_fc_.bias], wide, use.grad_to_add(c_fc_.bias), N, 4 * C);
  weight_gradient(use, mlp_c_proj_.weight, {h, N, 4 * C}, {dx, N, C});
  bias_gradient(use, mlp_c_proj_.bias, {dx, N, C});

  layernorm_recompute(middle_.data(), use[ln_2_.weight], use[ln_2_.bias], ln_2_stats(), z, N, C);
  weight_gradient(use, c_fc_.weight, {z, N, C}, {wide, N, 4 * C});
  multiply({dz, N, C}, {wide, N, 4 * C}, ConstMatrix(use[c_fc_.weight], C, 4 * C).t());
  layernorm_backward(middle_.data(), use[ln_2_.weight], ln_2_stats(), dz, dx,
                     use.grad_to_add(ln_2_.weight), use.grad_to_add(ln_2_.bias), N, C);
}

void Block::backward_attention(acc::BackwardUse& use, float* dx, BatchShape shape,
                               Scratch& scratch) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  float* dqkv = scratch.wide.data();              // (N, 3C)
  float* z = scratch.normalized.data();           // (N, C)
  float* d_channels = scratch.d_channels.data();  // (N, C): d attended, then dz

  weight_gradient(use, attn_c_proj_.weight, {attended_.data(), N, C}, {dx, N, C});
  bias_gradient(use, attn_c_proj_.bias, {dx, N, C});
  multiply({d_channels, N, C}, {dx, N, C}, ConstMatrix(use[attn_c_proj_.weight], C, C).t());
  attention_backward(attention_shape(shape), qkv_.data(), attended_.data(), log_sum_.data(),
                     d_channels, dqkv, scratch.attention);

  layernorm_recompute(x_, use[ln_1_.weight], use[ln_1_.bias], ln_1_stats(), z, N, C);
  weight_gradient(use, c_attn_.weight, {z, N, C}, {dqkv, N, 3 * C});
  bias_gradient(use, c_attn_.bias, {dqkv, N, 3 * C});
  multiply({d_channels, N, C}, {dqkv, N, 3 * C}, ConstMatrix(use[c_attn_.weight], C, 3 * C).t());
  layernorm_backward(x_, use[ln_1_.weight], ln_1_stats(), d_channels, dx,
                     use.grad_to_add(ln_1_.weight), use.grad_to_add(ln_1_.bias), N, C);
}

AttentionShape Block::attention_shape(BatchShape shape) const {
  return {shape.batch, shape.time, config_.heads, config_.head_dim()};
}

RowStats Block::ln_1_stats() const {
  return {stats_.data(), stats_.data() + max_rows_};
}

RowStats Block::ln_2_stats() const {
  return {stats_.data() + 2 * max_rows_, stats_.data() + 3 * max_rows_};
}

}  // namespace train_gpt
