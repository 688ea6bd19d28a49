// SPDX-License-Identifier: Apache-2.0
#include "cuda/block.hpp"

#include <acc/settings/environment.hpp>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace train_gpt::cuda {
namespace {

AttentionShape attention_shape(const ModelConfig& config, BatchShape shape) {
  return {shape.batch, shape.time, config.heads, config.head_dim()};
}

constexpr std::int64_t kLinearLayers = 4;  // of a block

template <class T>
std::unique_ptr<Fp8> make_fp8(cudaStream_t stream, Matmul<T>& matmul, const ModelConfig& config,
                              BatchShape largest, const acc::settings::RuntimeSettings& settings) {
  if constexpr (std::is_same_v<T, Fp8::T>) {
    if (settings.sharding.mixed_precision == acc::settings::MixedPrecision::fp8) {
      return std::make_unique<Fp8>(
          stream, matmul, acc::settings::fp8_settings(acc::settings::current_environment()),
          kLinearLayers * config.layers, largest.rows(), 4 * config.dim,
          4 * config.dim * config.dim);
    }
  }
  return nullptr;
}

}  // namespace

template <class T>
Context<T>::Context(cudaStream_t compute_stream, const ModelConfig& config, BatchShape largest,
                    const acc::settings::RuntimeSettings& settings)
    : stream(compute_stream),
      graphs(compute_stream, graphs_from_environment()),
      matmul(compute_stream, 4 * config.dim, MatmulOptions::from_environment()),
      fp8(make_fp8(compute_stream, matmul, config, largest, settings)),
      linears(compute_stream, matmul, fp8.get()),
      attention(compute_stream, attention_shape(config, largest),
                {attention_choice_from_environment(), settings.sharding.deterministic}),
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
Block<T>::Block(const BlockParameters& parameters, std::int64_t layer, const ModelConfig& config,
                BatchShape largest, Activations<T>& activations)
    : config_(config), max_rows_(largest.rows()), layer_(layer), p_(parameters), a_(&activations) {
  static_assert(kLayers == kLinearLayers);
}

template <class T>
template <class Use>
typename Block<T>::Forward Block<T>::arguments(const Use& use, const T* x, BatchShape shape,
                                               const Context<T>& context) const {
  const auto p = [&](const Affine& which) { return values<T>(use, which); };
  return {{p(p_.ln_1), p(p_.c_attn), p(p_.attn_c_proj), p(p_.ln_2), p(p_.c_fc), p(p_.mlp_c_proj)},
          x,
          shape.batch,
          shape.time,
          context.fp8 != nullptr && context.fp8->has_scales()};
}

template <class T>
const T* Block<T>::forward(const acc::ForwardUse& use, const T* x, BatchShape shape,
                           Context<T>& context) {
  x_ = x;
  const Forward forward = arguments(use, x, shape, context);
  forward_.run(context.graphs, forward, [&] { issue_forward(forward, context); });
  return a_->out.data();
}

template <class T>
void Block<T>::backward(acc::BackwardUse& use, T* dx, BatchShape shape, Context<T>& context) {
  const Backward backward{arguments(use, x_, shape, context),
                          {gradients_to_add<T>(use, p_.ln_1), gradients<T>(use, p_.c_attn),
                           gradients<T>(use, p_.attn_c_proj), gradients_to_add<T>(use, p_.ln_2),
                           gradients<T>(use, p_.c_fc), gradients<T>(use, p_.mlp_c_proj)},
                          dx};
  backward_.run(context.graphs, backward, [&] { issue_backward(backward, context); });
}

// middle = x + attention(ln_1(x) @ c_attn) @ attn.c_proj
// out = middle + gelu(ln_2(middle) @ c_fc) @ mlp.c_proj
template <class T>
void Block<T>::issue_forward(const Forward& forward, Context<T>& context) {
  const Values& p = forward.p;
  const T* x = forward.x;
  const BatchShape shape = forward.shape();
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  layernorm_forward(context.stream, x, p.ln_1.weight, p.ln_1.bias, config_.layer_norm_epsilon,
                    a_->z_1.data(), stats(0), N, C);
  context.linears.forward(layer(kCAttn), {a_->qkv.data(), N, 3 * C}, {a_->z_1.data(), N, C},
                          p.c_attn);
  context.attention.forward(attention_shape(config_, shape), a_->qkv.data(), a_->attended.data(),
                            a_->log_sum.data());
  context.linears.forward(layer(kAttnCProj), {a_->middle.data(), N, C}, {a_->attended.data(), N, C},
                          p.attn_c_proj, x);

  layernorm_forward(context.stream, a_->middle.data(), p.ln_2.weight, p.ln_2.bias,
                    config_.layer_norm_epsilon, a_->z_2.data(), stats(1), N, C);
  context.linears.forward_gelu(layer(kCFc), {a_->h.data(), N, 4 * C}, a_->u.data(),
                               {a_->z_2.data(), N, C}, p.c_fc);
  context.linears.forward(layer(kMlpCProj), {a_->out.data(), N, C}, {a_->h.data(), N, 4 * C},
                          p.mlp_c_proj, a_->middle.data());
}

template <class T>
void Block<T>::issue_backward(const Backward& backward, Context<T>& context) {
  issue_backward_mlp(backward, context);
  issue_backward_attention(backward, context);
}

template <class T>
void Block<T>::issue_backward_mlp(const Backward& backward, Context<T>& context) {
  const Values& p = backward.forward.p;
  const std::int64_t N = backward.forward.shape().rows();
  const std::int64_t C = config_.dim;
  T* dx = backward.dx;
  T* du = context.wide.data();        // (N, 4C)
  T* dz = context.d_channels.data();  // (N, C)
  context.linears.backward_gelu(layer(kMlpCProj), {du, N, 4 * C}, a_->u.data(),
                                backward.d.mlp_c_proj, {a_->h.data(), N, 4 * C}, {dx, N, C},
                                p.mlp_c_proj);
  context.linears.backward(layer(kCFc), {dz, N, C}, backward.d.c_fc, {a_->z_2.data(), N, C},
                           {du, N, 4 * C}, p.c_fc);
  layernorm_backward(context.stream, a_->middle.data(), p.ln_2.weight, stats(1), dz, dx, true,
                     backward.d.ln_2.weight.data, backward.d.ln_2.bias.data,
                     context.layernorm.data(), N, C);
}

template <class T>
void Block<T>::issue_backward_attention(const Backward& backward, Context<T>& context) {
  const Values& p = backward.forward.p;
  const BatchShape shape = backward.forward.shape();
  const std::int64_t N = shape.rows();
  const std::int64_t C = config_.dim;
  T* dx = backward.dx;
  T* dqkv = context.wide.data();              // (N, 3C)
  T* d_channels = context.d_channels.data();  // (N, C): d attended, then dz
  context.linears.backward(layer(kAttnCProj), {d_channels, N, C}, backward.d.attn_c_proj,
                           {a_->attended.data(), N, C}, {dx, N, C}, p.attn_c_proj);
  context.attention.backward(attention_shape(config_, shape), a_->qkv.data(), a_->attended.data(),
                             a_->log_sum.data(), d_channels, dqkv);
  context.linears.backward(layer(kCAttn), {d_channels, N, C}, backward.d.c_attn,
                           {a_->z_1.data(), N, C}, {dqkv, N, 3 * C}, p.c_attn);
  layernorm_backward(context.stream, backward.forward.x, p.ln_1.weight, stats(0), d_channels, dx,
                     true, backward.d.ln_1.weight.data, backward.d.ln_1.bias.data,
                     context.layernorm.data(), N, C);
}

template <class T>
RowStats Block<T>::stats(int norm) const {
  return {a_->stats.data() + 2 * norm * max_rows_, a_->stats.data() + (2 * norm + 1) * max_rows_};
}

template struct Context<float>;
template struct Context<__nv_bfloat16>;
template struct Context<__half>;
template struct Activations<float>;
template struct Activations<__nv_bfloat16>;
template struct Activations<__half>;
template class Block<float>;
template class Block<__nv_bfloat16>;
template class Block<__half>;

}  // namespace train_gpt::cuda
