// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention.hpp"

#include "cuda/cuda_check.hpp"
#include "cuda/kernels.hpp"

#include <acc/base/error.hpp>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>

namespace train_gpt::cuda {
namespace {

/// Type of the elements for cuDNN; none if its attention has no kernels for them.
template <class T>
constexpr std::optional<cudnn::DataType> kType = std::is_same_v<T, __nv_bfloat16>
                                                     ? std::optional(cudnn::DataType::bfloat16)
                                                 : std::is_same_v<T, __half>
                                                     ? std::optional(cudnn::DataType::float16)
                                                     : std::nullopt;

void report(const std::string& line) {
  std::fprintf(stderr, "train_gpt: %s\n", line.c_str());
}

/// Returns why cuDNN's attention is not even tried, or "".
template <class T>
std::string obstacle(const AttentionOptions& options) {
  if (options.choice == AttentionChoice::kernels) {
    return "TRAIN_GPT_ATTENTION=kernels";
  }
  if (!kType<T>) {
    return "cuDNN computes attention in bf16 or fp16, not in fp32";
  }
  int device = 0;
  int major = 0;
  check(cudaGetDevice(&device), "reading the GPU's properties");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "reading the GPU's properties");
  // Newer GPUs need engines that are selected by number (cudnn-frontend 1.32,
  // CompositeSDPABackwardNode::override_heuristics_query).
  constexpr int kLastDeterministic = 9;
  if (options.deterministic && major > kLastDeterministic) {
    return "the run is deterministic and the GPU has compute capability " + std::to_string(major) +
           ".x";
  }
  return "";
}

}  // namespace

AttentionChoice attention_choice_from_environment() {
  const char* const variable = std::getenv("TRAIN_GPT_ATTENTION");
  const std::string_view word = variable == nullptr ? "auto" : variable;
  if (word == "auto") {
    return AttentionChoice::automatic;
  }
  if (word == "cudnn") {
    return AttentionChoice::cudnn;
  }
  if (word == "kernels") {
    return AttentionChoice::kernels;
  }
  throw acc::Error(acc::Errc::config, "TRAIN_GPT_ATTENTION must be auto, cudnn or kernels, got \"" +
                                          std::string(word) + "\"");
}

template <class T>
Attention<T>::Attention(cudaStream_t stream, const AttentionShape& largest,
                        AttentionOptions options)
    : stream_(stream),
      options_(options),
      delta_(largest.batch * largest.heads * largest.time, "attention's backward") {
  const std::string reason = obstacle<T>(options);
  if (!reason.empty()) {
    leave_cudnn(reason);
    return;
  }
  try {
    cudnn_ = std::make_unique<cudnn::Attention>(
        stream, cudnn::AttentionGraph{largest, *kType<T>, options.deterministic});
    report("attention by cuDNN " + cudnn_->library() +
           (options.deterministic ? ", deterministic" : ""));
  } catch (const acc::Error& error) {
    leave_cudnn(error.what());
  }
}

template <class T>
void Attention<T>::leave_cudnn(std::string_view reason) {
  if (options_.choice == AttentionChoice::cudnn) {
    throw acc::Error(acc::Errc::device,
                     "TRAIN_GPT_ATTENTION=cudnn cannot be fulfilled: " + std::string(reason));
  }
  cudnn_.reset();
  report("attention by the program's own kernels: " + std::string(reason));
}

template <class T>
template <class Compute>
bool Attention<T>::by_cudnn(const AttentionShape& shape, const Compute& compute) {
  if (cudnn_ == nullptr || !cudnn_->supports(shape)) {
    return false;
  }
  try {
    compute();
    return true;
  } catch (const acc::Error& error) {
    if (is_capturing(stream_)) {
      throw;  // the capture ends; cuDNN may work without it
    }
    leave_cudnn(error.what());
    return false;
  }
}

template <class T>
void Attention<T>::forward(const AttentionShape& shape, const T* qkv, T* out, float* log_sum) {
  if (!by_cudnn(shape, [&] { cudnn_->forward(shape, qkv, out, log_sum); })) {
    attention_forward(stream_, shape, qkv, out, log_sum);
  }
}

template <class T>
void Attention<T>::backward(const AttentionShape& shape, const T* qkv, const T* out,
                            const float* log_sum, const T* d_out, T* dqkv) {
  const auto compute = [&] {
    cudnn_->backward(shape, qkv, out, log_sum, d_out, delta_.data(), dqkv);
  };
  if (!by_cudnn(shape, compute)) {
    attention_backward(stream_, shape, qkv, out, log_sum, d_out, delta_.data(), dqkv);
  }
}

template class Attention<float>;
template class Attention<__nv_bfloat16>;
template class Attention<__half>;

}  // namespace train_gpt::cuda
