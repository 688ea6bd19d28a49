// SPDX-License-Identifier: Apache-2.0
#include "model/gpt.hpp"

#include "model/kernels.hpp"

#include <algorithm>
#include <utility>

namespace train_gpt {
namespace {

/// Returns the number of rows whose logits are computed at a time: about 4 MiB of logits, which fit
/// in a cache, but at least as many rows as channels. The product that adds to the gradient of the
/// head reads and writes all of it for each group of rows, which would take longer than its
/// multiplications; and the logits then take no more memory than that gradient.
std::int64_t choose_logit_rows(const ModelConfig& config, std::int64_t rows) {
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  constexpr std::int64_t kFewest = 64;
  return std::min(rows, std::max({kFewest, config.dim, kElements / config.vocab}));
}

}  // namespace

Gpt::Gpt(acc::Model& model, const ModelConfig& config, BatchShape largest, acc::Runtime* keeper)
    : config_(config),
      p_(model, config),
      compute_dtype_(model.compute_dtype()),
      scratch_(config, {}, compute_dtype_, 0),
      values_(compute_dtype_) {
  if (keeper != nullptr) {
    inputs_.emplace(*keeper);
  }
  allocate(largest);
}

void Gpt::allocate(BatchShape largest) {
  const std::int64_t rows = largest.rows();
  largest_ = largest;
  logit_rows_ = choose_logit_rows(config_, rows);
  scratch_ = Scratch(config_, largest, compute_dtype_, logit_rows_ * config_.vocab);
  embedded_ = Buffer(rows * config_.dim);
  stats_ = Buffer(2 * rows);
  logits_ = Buffer(logit_rows_ * config_.vocab);
  dx_ = Buffer(rows * config_.dim);
  blocks_.clear();
  activations_.clear();
  const std::size_t sets = inputs_ ? 1 : p_.blocks.size();
  activations_.reserve(sets);  // blocks hold pointers to the elements, so they must not move
  for (const BlockParameters& block : p_.blocks) {
    if (activations_.size() < sets) {
      activations_.emplace_back(config_, largest);
    }
    blocks_.emplace_back(block, config_, largest, activations_.back());
  }
}

void Gpt::restart(std::int64_t largest_batch) {
  loss_ = 0.0;
  if (largest_batch > largest_.batch) {
    allocate({.batch = largest_batch, .time = largest_.time});
  }
}

// The root unit's scopes enclose those of the blocks: it holds the embeddings, the final norm and
// the head.
void Gpt::train(const Batch& batch) {
  BlockInputs* const inputs = inputs_ ? &*inputs_ : nullptr;
  const float* x = nullptr;
  {
    auto use = p_.root->forward();
    x = forward_blocks(blocks_, embed(use, batch.inputs, batch.shape), batch.shape, scratch_,
                       inputs, batch.shape.rows() * config_.dim * std::int64_t{sizeof(float)});
  }
  // The loss is computed in the root's backward scope, because each chunk of logits is turned into
  // gradients before the next chunk is computed.
  auto use = p_.root->backward();
  values_.begin();
  const std::int64_t table = config_.vocab * config_.dim;
  FloatGradient d_head = values_.gradient(use, p_.head, table);
  loss_ += loss_and_gradient(use, x, batch, d_head);
  backward_blocks(blocks_, dx_.data(), batch.shape, scratch_, inputs);
  if (is_tied()) {
    embed_backward(use, batch, d_head);
  } else {
    FloatGradient d_wte = values_.gradient(use, p_.wte, table);
    embed_backward(use, batch, d_wte);
  }
  values_.finish(use);
  use.end();
}

acc::IssuedMean Gpt::take_loss(acc::Runtime& runtime, double micro_steps) {
  const double loss = std::exchange(loss_, 0.0) / micro_steps;
  return runtime.issue_mean(&loss);
}

std::int64_t Gpt::activation_bytes() const {
  std::int64_t nbytes =
      scratch_.nbytes() + embedded_.nbytes() + stats_.nbytes() + logits_.nbytes() + dx_.nbytes();
  for (const Activations& each : activations_) {
    nbytes += each.nbytes();
  }
  return nbytes;
}

std::int64_t Gpt::kept_bytes() const {
  return inputs_ ? inputs_->most_nbytes() : 0;
}

// x[b, t] = wte[ids[b, t]] + wpe[t]
const float* Gpt::embed(const acc::ForwardUse& use, std::span<const std::int32_t> ids,
                        BatchShape shape) {
  const std::int64_t C = config_.dim;
  const Weight wte = weight(use, p_.wte, config_.vocab, C);
  const Weight wpe = weight(use, p_.wpe, config_.max_positions, C);
  std::fill_n(embedded_.data(), shape.rows() * C, 0.0f);
  for (std::int64_t n = 0; n < shape.rows(); ++n) {
    values_.add_row(embedded_.data() + n * C, wte, ids[static_cast<std::size_t>(n)]);
    values_.add_row(embedded_.data() + n * C, wpe, n % shape.time);
  }
  return embedded_.data();
}

void Gpt::embed_backward(acc::BackwardUse& use, const Batch& batch, FloatGradient& wte) {
  const std::int64_t C = config_.dim;
  float* d_wte = wte.to_add();  // (V, C)
  float* d_wpe =
      values_.gradient(use, p_.wpe, config_.max_positions * C).to_add();  // (positions, C)
  for (std::int64_t n = 0; n < batch.shape.rows(); ++n) {
    const std::int64_t id = batch.inputs[static_cast<std::size_t>(n)];
    const float* dx = dx_.data() + n * C;
    add(d_wte + id * C, dx, C);
    add(d_wpe + n % batch.shape.time * C, dx, C);
  }
}

// logits = ln_f(x) @ head^T, chunk by chunk of rows. Leaves the gradient of x in dx_.
double Gpt::loss_and_gradient(acc::BackwardUse& use, const float* x, const Batch& batch,
                              FloatGradient& d_head) {
  TypedGemm& gemm = scratch_.gemm;
  const std::int64_t N = batch.shape.rows();
  const std::int64_t C = config_.dim;
  const std::int64_t V = config_.vocab;
  const RowStats stats{stats_.data(), stats_.data() + N};
  const Weight head = weight(use, p_.head, V, C);
  float* z = scratch_.normalized.data();   // (N, C)
  float* dz = scratch_.d_channels.data();  // (N, C)
  layernorm_forward(x, values_(use, p_.ln_f.weight, C), values_(use, p_.ln_f.bias, C),
                    config_.layer_norm_epsilon, z, stats, N, C);
  double loss = 0.0;
  for (std::int64_t first = 0; first < N; first += logit_rows_) {
    const std::int64_t rows = std::min(logit_rows_, N - first);
    const Operand z_rows = gemm.input({z + first * C, rows, C});
    gemm.apply({logits_.data(), rows, V}, z_rows, head.t());
    loss += cross_entropy(logits_.data(), batch.targets.data() + first,
                          batch.loss_scale * batch.weight / static_cast<float>(N), rows, V);
    const Operand d_logits = gemm.gradient({logits_.data(), rows, V});
    gemm.apply({dz + first * C, rows, C}, d_logits, head);
    gemm.weight_gradient(d_head, d_logits, z_rows);
  }
  std::fill(dx_.data(), dx_.data() + N * C, 0.0f);
  layernorm_backward(x, values_(use, p_.ln_f.weight, C), stats, dz, dx_.data(),
                     values_.gradient(use, p_.ln_f.weight, C).to_add(),
                     values_.gradient(use, p_.ln_f.bias, C).to_add(), N, C);
  return batch.weight * loss / static_cast<double>(N);
}

std::span<const float> Gpt::next_token_logits(std::span<const std::int32_t> tokens) {
  const std::int64_t C = config_.dim;
  const BatchShape shape{.batch = 1, .time = static_cast<std::int64_t>(tokens.size())};
  auto use = p_.root->forward();
  values_.begin();
  const float* x = forward_blocks(blocks_, embed(use, tokens, shape), shape, scratch_, nullptr, 0);
  float* z = scratch_.normalized.data();  // (1, C): the last position only
  layernorm_forward(x + (shape.time - 1) * C, values_(use, p_.ln_f.weight, C),
                    values_(use, p_.ln_f.bias, C), config_.layer_norm_epsilon, z,
                    {stats_.data(), stats_.data() + 1}, 1, C);
  scratch_.gemm.apply({logits_.data(), 1, config_.vocab}, scratch_.gemm.input({z, 1, C}),
                      weight(use, p_.head, config_.vocab, C).t());
  use.end();
  return {logits_.data(), static_cast<std::size_t>(config_.vocab)};
}

}  // namespace train_gpt
