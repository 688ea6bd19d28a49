// SPDX-License-Identifier: Apache-2.0
#include "cuda/block.hpp"

#include <cuda_bf16.h>

namespace train_gpt::cuda {
namespace {

AttentionShape attention_shape(const ModelConfig& config, BatchShape shape) {
  return {shape.batch, shape.time, config.heads, config.head_dim()};
}

}  // namespace

template <class T>
Context<T>::Context(cudaStream_t compute_stream, const ModelConfig& config, BatchShape largest,
                    bool deterministic)
    : stream(compute_stream),
      matmul(compute_stream, 4 * config.dim, MatmulOptions::from_environment()),
      attention(compute_stream, attention_shape(config, largest),
                {attention_choice_from_environment(), deterministic}),
      wide(largest.rows() * 4 * config.dim, "gradients between layers"),
      d_channels(largest.rows() * config.dim, "gradients between layers"),
      layernorm(layernorm_scratch(config.dim), "the layer norms' backward") {}

template <class T>
Activations<T>::Activations(const ModelConfig& config, BatchShape largest)
    : stats(4 * largest.rows(), "activations"),
      log_sum(largest.rows() * config.heads, "activations"),
      z_1(largest.rows() * config.dim, "activations"),
      qkv(largest.rows() * 3 * config.dim, "activations"),
      attended(largest.rows() * config.dim, "activations"),
      middle(largest.rows() * config.dim, "activations"),
      z_2(largest.rows() * config.dim, "activations"),
      u(largest.rows() * 4 * config.dim, "activations"),
      h(largest.rows() * 4 * config.dim, "activations"),
      out(largest.rows() * config.dim, "activations") {}

template <class T>
Block<T>::Block(const BlockParameters& parameters, const ModelConfig& config, BatchShape largest,
                Activations<T>& activations)
    : config_(config), max_rows_(largest.rows()), p_(parameters), a_(&activations) {}

// middle = x + attention(ln_1(x) @ c_attn) @ attn.c_proj
// out = middle + gelu(ln_2(middle) @ c_fc) @ mlp.c_proj
template <class T>
const T* Block<T>::forward(const acc::ForwardUse& use, const T* x, BatchShape shape,
                           Context<T>& context) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  const auto p = [&](acc::Parameter which) { return parameter<T>(use, which); };
  x_ = x;
  layernorm_forward(context.stream, x, p(p_.ln_1.weight), p(p_.ln_1.bias),
                    config_.layer_norm_epsilon, a_->z_1.data(), stats(0), N, C);
  context.matmul.linear({a_->qkv.data(), N, 3 * C}, {a_->z_1.data(), N, C},
                        {p(p_.c_attn.weight), C, 3 * C}, p(p_.c_attn.bias));
  context.attention.forward(attention_shape(config_, shape), a_->qkv.data(), a_->attended.data(),
                            a_->log_sum.data());
  context.matmul.linear_add({a_->middle.data(), N, C}, {a_->attended.data(), N, C},
                            {p(p_.attn_c_proj.weight), C, C}, p(p_.attn_c_proj.bias), x);

  layernorm_forward(context.stream, a_->middle.data(), p(p_.ln_2.weight), p(p_.ln_2.bias),
                    config_.layer_norm_epsilon, a_->z_2.data(), stats(1), N, C);
  context.matmul.linear_gelu({a_->h.data(), N, 4 * C}, a_->u.data(), {a_->z_2.data(), N, C},
                             {p(p_.c_fc.weight), C, 4 * C}, p(p_.c_fc.bias));
  context.matmul.linear_add({a_->out.data(), N, C}, {a_->h.data(), N, 4 * C},
                            {p(p_.mlp_c_proj.weight), 4 * C, C}, p(p_.mlp_c_proj.bias),
                            a_->middle.data());
  return a_->out.data();
}

template <class T>
void Block<T>::backward(acc::BackwardUse& use, T* dx, BatchShape shape, Context<T>& context) {
  backward_mlp(use, dx, shape, context);
  backward_attention(use, dx, shape, context);
}

template <class T>
void Block<T>::backward_mlp(acc::BackwardUse& use, T* dx, BatchShape shape, Context<T>& context) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  T* du = context.wide.data();        // (N, 4C)
  T* dz = context.d_channels.data();  // (N, C)
  const ConstMatrix<T> c_fc(parameter<T>(use, p_.c_fc.weight), C, 4 * C);
  const ConstMatrix<T> c_proj(parameter<T>(use, p_.mlp_c_proj.weight), 4 * C, C);

  context.matmul.weight_gradient(gradient<T>(use, p_.mlp_c_proj.weight),
                                 gradient<T>(use, p_.mlp_c_proj.bias), {a_->h.data(), N, 4 * C},
                                 {dx, N, C});
  context.matmul.multiply_gelu_backward({du, N, 4 * C}, {dx, N, C}, c_proj.t(), a_->u.data());
  context.matmul.weight_gradient(gradient<T>(use, p_.c_fc.weight), gradient<T>(use, p_.c_fc.bias),
                                 {a_->z_2.data(), N, C}, {du, N, 4 * C});
  context.matmul.multiply({dz, N, C}, {du, N, 4 * C}, c_fc.t());
  layernorm_backward(context.stream, a_->middle.data(), parameter<T>(use, p_.ln_2.weight), stats(1),
                     dz, dx, true, gradient_to_add<T>(use, p_.ln_2.weight),
                     gradient_to_add<T>(use, p_.ln_2.bias), context.layernorm.data(), N, C);
}

template <class T>
void Block<T>::backward_attention(acc::BackwardUse& use, T* dx, BatchShape shape,
                                  Context<T>& context) {
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  T* dqkv = context.wide.data();              // (N, 3C)
  T* d_channels = context.d_channels.data();  // (N, C): d attended, then dz
  const ConstMatrix<T> c_attn(parameter<T>(use, p_.c_attn.weight), C, 3 * C);
  const ConstMatrix<T> c_proj(parameter<T>(use, p_.attn_c_proj.weight), C, C);

  context.matmul.weight_gradient(gradient<T>(use, p_.attn_c_proj.weight),
                                 gradient<T>(use, p_.attn_c_proj.bias), {a_->attended.data(), N, C},
                                 {dx, N, C});
  context.matmul.multiply({d_channels, N, C}, {dx, N, C}, c_proj.t());
  context.attention.backward(attention_shape(config_, shape), a_->qkv.data(), a_->attended.data(),
                             a_->log_sum.data(), d_channels, dqkv);
  context.matmul.weight_gradient(gradient<T>(use, p_.c_attn.weight),
                                 gradient<T>(use, p_.c_attn.bias), {a_->z_1.data(), N, C},
                                 {dqkv, N, 3 * C});
  context.matmul.multiply({d_channels, N, C}, {dqkv, N, 3 * C}, c_attn.t());
  layernorm_backward(context.stream, x_, parameter<T>(use, p_.ln_1.weight), stats(0), d_channels,
                     dx, true, gradient_to_add<T>(use, p_.ln_1.weight),
                     gradient_to_add<T>(use, p_.ln_1.bias), context.layernorm.data(), N, C);
}

template <class T>
RowStats Block<T>::stats(int norm) const {
  return {a_->stats.data() + 2 * norm * max_rows_, a_->stats.data() + (2 * norm + 1) * max_rows_};
}

template struct Context<float>;
template struct Context<__nv_bfloat16>;
template struct Activations<float>;
template struct Activations<__nv_bfloat16>;
template class Block<float>;
template class Block<__nv_bfloat16>;

}  // namespace train_gpt::cuda
