// SPDX-License-Identifier: Apache-2.0
#include "cuda/gpt.hpp"

#include "cuda/batch_upload.hpp"
#include "cuda/block.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/kernels.hpp"
#include "cuda/matmul.hpp"
#include "model/block_inputs.hpp"
#include "model/parameters.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace train_gpt::cuda {
namespace {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the number of rows whose logits are computed at a time. All pieces have nearly the same
/// size, so that no matrix product is small.
std::int64_t choose_logit_rows(std::int64_t padded_vocab, std::int64_t rows,
                               std::int64_t most_logits) {
  constexpr std::int64_t kRowTile = 256;
  const std::int64_t most = std::max(kRowTile, most_logits / padded_vocab / kRowTile * kRowTile);
  const std::int64_t pieces = (rows + most - 1) / most;
  return std::min(rows, round_up((rows + pieces - 1) / pieces, kRowTile));
}

/// Returns the width of the logits' rows: the vocabulary, padded because matrix products need rows
/// of whole 16-byte vectors.
std::int64_t pad_vocab(std::int64_t vocab) {
  constexpr std::int64_t kTile = 128;
  return vocab % kVectorElements == 0 ? vocab : round_up(vocab, kTile);
}

[[noreturn]] void refuse(const std::string& message) {
  throw acc::Error(acc::Errc::not_supported, message);
}

void check_sizes(const ModelConfig& config, acc::settings::MixedPrecision precision) {
  const bool fp8 = precision == acc::settings::MixedPrecision::fp8;
  const std::int64_t multiple = fp8 ? kFp8Vector : kVectorElements;
  if (config.dim % multiple != 0 || config.dim > kMaxChannels) {
    refuse("on a GPU, dim must be a multiple of " + std::to_string(multiple) +
           (fp8 ? " in fp8" : "") + " and at most " + std::to_string(kMaxChannels) + ", got " +
           std::to_string(config.dim));
  }
  if (config.head_dim() > kMaxHeadDim) {
    refuse("on a GPU, dim / heads must be at most " + std::to_string(kMaxHeadDim) + ", got " +
           std::to_string(config.head_dim()));
  }
}

template <class T>
class Gpt final : public LanguageModel {
 public:
  Gpt(acc::Runtime& runtime, cudaStream_t stream, acc::Model& model, const ModelConfig& config,
      BatchShape largest, std::int64_t most_logits);
  ~Gpt() override {
    cudaStreamSynchronize(stream_);
    runtime_.account_memory(-accounted_, kPurpose);
  }

  void train(const Batch& batch) override;
  acc::IssuedMean take_loss(acc::Runtime& runtime, double micro_steps) override;
  std::span<const float> next_token_logits(std::span<const std::int32_t> tokens) override;
  [[nodiscard]] std::int64_t activation_bytes() const override { return device_bytes(); }
  [[nodiscard]] std::int64_t kept_bytes() const override {
    return inputs_ ? inputs_->most_nbytes() : 0;
  }

 private:
  const T* embed(const acc::ForwardUse& use, BatchShape shape);
  /// Everything that the queued work of the head's backward depends on.
  struct Head {
    const T* x;
    std::int64_t rows;
    AffineValues<T> ln_f;
    const T* weight;
    AffineGradients<T> d_ln_f;
    GradientOf<T> d_weight;
    float scale;  ///< factor of the gradient of each row's loss
    double weight_of_losses;
    bool operator==(const Head&) const = default;
  };
  /// Returns the head (padded vocab, C): the parameter, or a copy that is padded with zeros.
  ConstMatrix<T> padded(const T* weight);
  void loss_and_gradient(acc::BackwardUse& use, const T* x, const Batch& batch);
  void issue_loss_and_gradient(const Head& head);

  static constexpr const char* kPurpose = "activations and working memory";

  acc::Runtime& runtime_;
  ModelConfig config_;
  cudaStream_t stream_;
  GptParameters p_;
  std::int64_t padded_vocab_;
  std::int64_t logit_rows_;  // number of rows whose logits exist at the same time
  Context<T> context_;
  std::optional<BlockInputs> inputs_;        // with activation checkpointing
  std::vector<Activations<T>> activations_;  // one per block, or one for all with checkpointing
  std::vector<Block<T>> blocks_;
  Graphed<Head> head_;
  BatchUpload upload_;

  DeviceBuffer<T> embedded_;         // (N, C)
  DeviceBuffer<float> stats_;        // (2, N): mean and rstd of ln_f
  DeviceBuffer<T> normalized_;       // (N, C)
  DeviceBuffer<T> padded_head_;      // (padded vocab, C), if the vocabulary needs padding
  DeviceBuffer<T> logits_;           // (logit rows, padded vocab), replaced by their gradient
  DeviceBuffer<T> dx_;               // (N, C)
  DeviceBuffer<float> losses_;       // (N)
  DeviceBuffer<double> total_;       // (1): sum of mean losses since the last take_loss
  DeviceBuffer<float> last_logits_;  // (padded vocab)
  std::vector<float> host_logits_;
  std::int64_t accounted_;  // bytes that the runtime's reports have
};

template <class T>
Gpt<T>::Gpt(acc::Runtime& runtime, cudaStream_t stream, acc::Model& model,
            const ModelConfig& config, BatchShape largest, std::int64_t most_logits)
    : runtime_(runtime),
      config_(config),
      stream_(stream),
      p_(model, config),
      padded_vocab_(pad_vocab(config.vocab)),
      logit_rows_(choose_logit_rows(padded_vocab_, largest.rows(), most_logits)),
      context_(stream, config, largest, runtime.settings()),
      upload_(stream, largest.rows(), config.vocab),
      embedded_(largest.rows() * config.dim, "activations"),
      stats_(2 * largest.rows(), "activations"),
      normalized_(largest.rows() * config.dim, "activations"),
      logits_(logit_rows_ * padded_vocab_, "logits"),
      dx_(largest.rows() * config.dim, "gradients between layers"),
      losses_(largest.rows(), "losses"),
      total_(1, "losses"),
      last_logits_(padded_vocab_, "logits"),
      host_logits_(static_cast<std::size_t>(padded_vocab_)) {
  if (runtime.activation_checkpointing()) {
    inputs_.emplace(runtime);
  }
  const std::size_t sets = inputs_ ? 1 : p_.blocks.size();
  activations_.reserve(sets);  // blocks hold pointers to the elements, so they must not move
  for (const BlockParameters& block : p_.blocks) {
    if (activations_.size() < sets) {
      activations_.emplace_back(config, largest);
    }
    const auto layer = static_cast<std::int64_t>(blocks_.size());
    blocks_.emplace_back(block, layer, config, largest, activations_.back());
  }
  check(cudaMemsetAsync(total_.data(), 0, sizeof(double), stream), "clearing");
  if (padded_vocab_ != config.vocab) {
    padded_head_ = {padded_vocab_ * config.dim, "the padded head"};
    const auto count = static_cast<std::size_t>(padded_vocab_ * config.dim);
    check(cudaMemsetAsync(padded_head_.data(), 0, count * sizeof(T), stream), "clearing");
  }
  accounted_ = device_bytes();
  runtime_.account_memory(accounted_, kPurpose);
}

template <class T>
void Gpt<T>::train(const Batch& batch) {
  // The host groups the rows by token (upload_.finish) only after it has queued the forward and
  // most of the backward, so that this work overlaps with the GPU's.
  upload_.start(batch.inputs, batch.targets);
  if (context_.fp8 != nullptr) {
    context_.fp8->begin_micro_step();
  }
  BlockInputs* const inputs = inputs_ ? &*inputs_ : nullptr;
  const T* x = nullptr;
  {
    auto use = p_.root->forward();
    x = forward_blocks(blocks_, embed(use, batch.shape), batch.shape, context_, inputs,
                       batch.shape.rows() * config_.dim * std::int64_t{sizeof(T)});
  }
  // The loss is computed in the root's backward scope, because each piece of logits is turned into
  // gradients before the next piece is computed.
  auto use = p_.root->backward();
  loss_and_gradient(use, x, batch);
  backward_blocks(blocks_, dx_.data(), batch.shape, context_, inputs);
  embedding_backward(stream_, upload_.finish(batch.inputs), dx_.data(),
                     gradient_to_add<T>(use, p_.wte), gradient_to_add<T>(use, p_.wpe),
                     batch.shape.rows(), batch.shape.time, config_.dim);
  use.end();
}

template <class T>
acc::IssuedMean Gpt<T>::take_loss(acc::Runtime& runtime, double micro_steps) {
  const acc::IssuedMean mean = runtime.issue_mean(total_.data(), micro_steps);
  check(cudaMemsetAsync(total_.data(), 0, sizeof(double), stream_), "clearing");
  return mean;
}

template <class T>
const T* Gpt<T>::embed(const acc::ForwardUse& use, BatchShape shape) {
  embedding_forward(stream_, upload_.inputs(), parameter<T>(use, p_.wte), parameter<T>(use, p_.wpe),
                    embedded_.data(), shape.rows(), shape.time, config_.dim);
  return embedded_.data();
}

template <class T>
ConstMatrix<T> Gpt<T>::padded(const T* weight) {
  if (padded_vocab_ != config_.vocab) {
    const auto count = static_cast<std::size_t>(config_.vocab * config_.dim);
    check(cudaMemcpyAsync(padded_head_.data(), weight, count * sizeof(T), cudaMemcpyDeviceToDevice,
                          stream_),
          "padding the head");
    weight = padded_head_.data();
  }
  return {weight, padded_vocab_, config_.dim};
}

template <class T>
void Gpt<T>::loss_and_gradient(acc::BackwardUse& use, const T* x, const Batch& batch) {
  const auto rows = static_cast<float>(batch.shape.rows());
  const Head head{x,
                  batch.shape.rows(),
                  values<T>(use, p_.ln_f),
                  parameter<T>(use, p_.head),
                  gradients_to_add<T>(use, p_.ln_f),
                  gradient<T>(use, p_.head),
                  batch.loss_scale * batch.weight / rows,
                  batch.weight / static_cast<double>(batch.shape.rows())};
  head_.run(context_.graphs, head, [&] { issue_loss_and_gradient(head); });
}

// Computes logits = ln_f(x) @ head^T, the loss and its gradient, one piece of rows after the other.
template <class T>
void Gpt<T>::issue_loss_and_gradient(const Head& head) {
  const std::int64_t N = head.rows;
  const std::int64_t C = config_.dim;
  const std::int64_t V = config_.vocab;
  const ConstMatrix<T> weight = padded(head.weight);
  const RowStats stats{stats_.data(), stats_.data() + N};
  T* z = normalized_.data();           // (N, C)
  T* dz = context_.d_channels.data();  // (N, C)
  layernorm_forward(stream_, head.x, head.ln_f.weight, head.ln_f.bias, config_.layer_norm_epsilon,
                    z, stats, N, C);
  for (std::int64_t first = 0; first < N; first += logit_rows_) {
    const std::int64_t rows = std::min(logit_rows_, N - first);
    const ConstMatrix<T> z_rows(z + first * C, rows, C);
    context_.matmul.multiply({logits_.data(), rows, padded_vocab_}, z_rows, weight.t());
    cross_entropy(stream_, logits_.data(), upload_.targets() + first, head.scale,
                  losses_.data() + first, rows, V, padded_vocab_);
    context_.matmul.multiply({dz + first * C, rows, C}, {logits_.data(), rows, padded_vocab_},
                             weight);
    const ConstMatrix<T> d_logits(logits_.data(), rows, V, padded_vocab_);
    context_.matmul.multiply({head.d_weight.data, V, C}, d_logits.t(), z_rows,
                             first == 0 ? head.d_weight.beta : 1.0f);
  }
  add_losses(stream_, losses_.data(), N, head.weight_of_losses, total_.data());
  layernorm_backward(stream_, head.x, head.ln_f.weight, stats, dz, dx_.data(), false,
                     head.d_ln_f.weight.data, head.d_ln_f.bias.data, context_.layernorm.data(), N,
                     C);
}

template <class T>
std::span<const float> Gpt<T>::next_token_logits(std::span<const std::int32_t> tokens) {
  const std::int64_t C = config_.dim;
  const BatchShape shape{.batch = 1, .time = static_cast<std::int64_t>(tokens.size())};
  upload_.start(tokens, {});
  auto use = p_.root->forward();
  const T* x = forward_blocks(blocks_, embed(use, shape), shape, context_, nullptr, 0);
  layernorm_forward(stream_, x + (shape.time - 1) * C, parameter<T>(use, p_.ln_f.weight),
                    parameter<T>(use, p_.ln_f.bias), config_.layer_norm_epsilon, normalized_.data(),
                    {stats_.data(), stats_.data() + 1}, 1, C);
  context_.matmul.multiply({logits_.data(), 1, padded_vocab_}, {normalized_.data(), 1, C},
                           padded(parameter<T>(use, p_.head)).t());
  widen(stream_, logits_.data(), last_logits_.data(), padded_vocab_);
  check(cudaMemcpyAsync(host_logits_.data(), last_logits_.data(),
                        host_logits_.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
        "reading logits");
  use.end();
  check(cudaStreamSynchronize(stream_), "a forward pass");
  return {host_logits_.data(), static_cast<std::size_t>(config_.vocab)};
}

}  // namespace

std::unique_ptr<LanguageModel> make_gpt(acc::Runtime& runtime, acc::Model& model,
                                        const ModelConfig& config, BatchShape largest,
                                        std::int64_t most_logits) {
  check_sizes(config, runtime.settings().sharding.mixed_precision);
  const acc::ComputeDevice device = runtime.device();
  check(cudaSetDevice(device.index), "choosing the GPU");
  const auto stream = static_cast<cudaStream_t>(device.stream);
  switch (model.compute_dtype()) {
    case acc::DType::bfloat16:
      return std::make_unique<Gpt<__nv_bfloat16>>(runtime, stream, model, config, largest,
                                                  most_logits);
    case acc::DType::float16:
      return std::make_unique<Gpt<__half>>(runtime, stream, model, config, largest, most_logits);
    case acc::DType::float32:
      return std::make_unique<Gpt<float>>(runtime, stream, model, config, largest, most_logits);
    default: break;
  }
  refuse("on a GPU, train_gpt computes in bf16, fp16 or fp32; the compute dtype is " +
         std::string(acc::to_string(model.compute_dtype())));
}

}  // namespace train_gpt::cuda
