// SPDX-License-Identifier: Apache-2.0
#include "cuda/fp8.hpp"

#include "cuda/cuda_check.hpp"

#include <acc/base/error.hpp>

#include <string>

namespace train_gpt::cuda {
namespace {

void check_capability() {
  constexpr int kAda = 89;
  int device = 0;
  int major = 0;
  int minor = 0;
  check(cudaGetDevice(&device), "reading the GPU's properties");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "reading the GPU's properties");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "reading the GPU's properties");
  if (10 * major + minor < kAda) {
    throw acc::Error(acc::Errc::not_supported,
                     "mixed_precision fp8 needs a GPU of compute capability 8.9 or newer; cuda:" +
                         std::to_string(device) + " has " + std::to_string(major) + "." +
                         std::to_string(minor) + "; use bf16");
  }
}

}  // namespace

Fp8::Fp8(cudaStream_t stream, Matmul<T>& matmul, const acc::settings::Fp8Settings& settings,
         std::int64_t layers, std::int64_t rows, std::int64_t channels, std::int64_t weight_numel)
    : stream_(stream), matmul_(matmul), settings_(settings) {
  check_capability();
  const std::int64_t count = layers * kTensors;
  constexpr const char* kScales = "fp8 scales";
  constexpr const char* kOperands = "fp8 operands";
  scale_ = {count, kScales};
  inverse_ = {count * kFp8ScaleStride, kScales};
  amax_ = {count, kScales};
  history_ = {count * settings.amax_history, kScales};
  input_ = {rows * channels, kOperands};
  input_transposed_ = {rows * channels, kOperands};
  gradient_ = {rows * channels, kOperands};
  gradient_transposed_ = {rows * channels, kOperands};
  weight_ = {weight_numel, kOperands};
  scales_ = {.scale = scale_.data(),
             .inverse = inverse_.data(),
             .amax = amax_.data(),
             .history = history_.data(),
             .count = count,
             .length = settings.amax_history,
             .margin = settings.margin,
             .use_max = settings.amax_max,
             .period = kTensors,
             .e5m2_at = settings.e5m2_gradients ? std::int64_t{kOutputGradient} : -1};
  fp8_reset_scales(stream, scales_);
}

void Fp8::begin_micro_step() {
  if (micro_steps_ > 0) {
    fp8_update_scales(stream_, scales_, (micro_steps_ - 1) % settings_.amax_history);
  }
  ++micro_steps_;
}

bool Fp8::possible(const ConstMatrix<T>& x, const ConstMatrix<T>& w) const {
  return x.rows % kFp8Vector == 0 && w.rows % kFp8Vector == 0 && w.cols % kFp8Vector == 0;
}

void Fp8::quantize(std::int64_t layer, Tensor tensor, ConstMatrix<T> x, Quantized to) {
  const std::int64_t index = layer * kTensors + tensor;
  const bool e5m2 = index % kTensors == scales_.e5m2_at;
  fp8_quantize(stream_, x.data, x.rows, x.cols, e5m2, scales_.scale + index, to.plain,
               to.transposed, scales_.amax + index);
}

Fp8Matrix Fp8::matrix(std::int64_t layer, Tensor tensor, const std::uint8_t* data,
                      std::int64_t rows, std::int64_t cols) const {
  const std::int64_t index = layer * kTensors + tensor;
  return {data, rows, cols, index % kTensors == scales_.e5m2_at ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3,
          scales_.inverse + index * kFp8ScaleStride};
}

void Fp8::forward(std::int64_t layer, Matrix<T> out, ConstMatrix<T> x, ConstMatrix<T> w,
                  const T* bias, const T* residual) {
  if (possible(x, w)) {
    const bool multiply = has_scales() && !settings_.in_bf16[0];
    quantize(layer, kInput, x, {multiply ? input_.data() : nullptr, nullptr});
    quantize(layer, kWeight, w, {nullptr, multiply ? weight_.data() : nullptr});
    if (multiply && matmul_.linear_fp8(out, matrix(layer, kInput, input_.data(), x.rows, x.cols),
                                       matrix(layer, kWeight, weight_.data(), w.cols, w.rows), bias,
                                       residual)) {
      return;
    }
  }
  residual == nullptr ? matmul_.linear(out, x, w, bias)
                      : matmul_.linear_add(out, x, w, bias, residual);
}

void Fp8::backward(std::int64_t layer, Matrix<T> dx, GradientOf<T> dw, GradientOf<T> db,
                   ConstMatrix<T> x, ConstMatrix<T> dy, ConstMatrix<T> w) {
  const bool can = possible(x, w);
  const bool inputs = can && has_scales() && !settings_.in_bf16[1];
  const bool weights = can && has_scales() && !settings_.in_bf16[2];
  if (can) {
    quantize(
        layer, kOutputGradient, dy,
        {inputs ? gradient_.data() : nullptr, weights ? gradient_transposed_.data() : nullptr});
  }
  bool done = false;
  if (weights) {
    quantize(layer, kInput, x, {nullptr, input_transposed_.data()});
    done = matmul_.multiply_fp8(
        {dw.data, x.cols, dy.cols}, matrix(layer, kInput, input_transposed_.data(), x.cols, x.rows),
        matrix(layer, kOutputGradient, gradient_transposed_.data(), dy.cols, dy.rows), dw.beta);
  }
  if (done) {
    matmul_.bias_gradient(db, dy);
  } else {
    matmul_.weight_gradient(dw, db, x, dy);
  }
  done = false;
  if (inputs) {
    quantize(layer, kWeight, w, {weight_.data(), nullptr});
    done =
        matmul_.multiply_fp8(dx, matrix(layer, kOutputGradient, gradient_.data(), dy.rows, dy.cols),
                             matrix(layer, kWeight, weight_.data(), w.rows, w.cols), 0.0f);
  }
  if (!done) {
    matmul_.multiply(dx, dy, w.t());
  }
}

}  // namespace train_gpt::cuda
