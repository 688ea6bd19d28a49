// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul.hpp"

#include "../random_values.hpp"
#include "device_array.hpp"

#include <acc/base/error.hpp>

#include <cmath>
#include <cstdlib>

using namespace train_gpt;
using namespace train_gpt::cuda;

#define DTYPES float, __nv_bfloat16, __half

namespace {

using Numbers = std::vector<double>;

constexpr std::int64_t kRows = 24;  // N
constexpr std::int64_t kIn = 40;
constexpr std::int64_t kOut = 16;

double gelu(double u) {
  return 0.5 * u * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (u + 0.044715 * u * u * u)));
}

/// a (rows, inner) b (inner, cols) + addend
Numbers product(const std::vector<float>& a, const std::vector<float>& b, std::int64_t inner,
                bool a_transposed, bool b_transposed) {
  const auto K = static_cast<std::size_t>(inner);
  const std::size_t M = a.size() / K;
  const std::size_t N = b.size() / K;
  Numbers result(M * N);
  for (std::size_t m = 0; m < M; ++m) {
    for (std::size_t n = 0; n < N; ++n) {
      for (std::size_t k = 0; k < K; ++k) {
        result[m * N + n] += static_cast<double>(a[a_transposed ? k * M + m : m * K + k]) *
                             static_cast<double>(b[b_transposed ? n * K + k : k * N + n]);
      }
    }
  }
  return result;
}

/// Operands of one linear layer, on host and GPU.
template <class T>
struct Layer {
  std::vector<float> x = rounded<T>(random_values(kRows * kIn, 1));
  std::vector<float> w = rounded<T>(random_values(kIn * kOut, 2));
  std::vector<float> bias = rounded<T>(random_values(kOut, 3));
  std::vector<float> dy = rounded<T>(random_values(kRows * kOut, 4));
  std::vector<float> residual = rounded<T>(random_values(kRows * kOut, 5));
  DeviceArray<T> device_x{x}, device_w{w}, device_bias{bias}, device_dy{dy};
  DeviceArray<T> device_residual{residual};

  ConstMatrix<T> x_matrix() const { return {device_x.data(), kRows, kIn}; }
  ConstMatrix<T> w_matrix() const { return {device_w.data(), kIn, kOut}; }
  ConstMatrix<T> dy_matrix() const { return {device_dy.data(), kRows, kOut}; }
  Numbers forward() const {
    Numbers y = product(x, w, kIn, false, false);
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] += bias[i % kOut];
    }
    return y;
  }
};

template <class T>
void check_layer(MatmulOptions options) {
  const TestStream stream;
  const Layer<T> layer;
  Matmul<T> matmul(stream, kIn, options);
  const DeviceArray<T> y(layer.dy.size()), u(layer.dy.size());
  const Numbers forward = layer.forward();

  matmul.linear({y.data(), kRows, kOut}, layer.x_matrix(), layer.w_matrix(),
                layer.device_bias.data());
  // Without the fused bias, the product is rounded before the bias is added.
  constexpr double kTwoRoundings = 2.0 * kTolerance<T>;
  CHECK(worst_error<T>(y.read(), forward) < kTwoRoundings);

  matmul.linear_add({y.data(), kRows, kOut}, layer.x_matrix(), layer.w_matrix(),
                    layer.device_bias.data(), layer.device_residual.data());
  Numbers expected = forward;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += layer.residual[i];
  }
  CHECK(worst_error<T>(y.read(), expected) < kTwoRoundings);

  matmul.linear_gelu({y.data(), kRows, kOut}, u.data(), layer.x_matrix(), layer.w_matrix(),
                     layer.device_bias.data());
  CHECK(worst_error<T>(u.read(), forward) < kTwoRoundings);
  expected = forward;
  for (double& value : expected) {
    value = gelu(value);
  }
  CHECK(worst_error<T>(y.read(), expected) < 2.0 * kTolerance<T>);

  // du (N, in) = (dy w^T) * gelu'(x)
  const DeviceArray<T> du(layer.x.size());
  matmul.multiply_gelu_backward({du.data(), kRows, kIn}, layer.dy_matrix(), layer.w_matrix().t(),
                                layer.device_x.data());
  expected = product(layer.dy, layer.w, kOut, false, true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double step = 1e-5;
    expected[i] *= (gelu(layer.x[i] + step) - gelu(layer.x[i] - step)) / (2.0 * step);
  }
  CHECK(worst_error<T>(du.read(), expected) < 2.0 * kTolerance<T>);
}

template <class T>
void check_gradients(MatmulOptions options, float dw_beta, float db_beta) {
  CAPTURE(dw_beta);
  CAPTURE(db_beta);
  const TestStream stream;
  const Layer<T> layer;
  Matmul<T> matmul(stream, kIn, options);
  const auto start = [](const std::vector<float>& values, float beta) {
    return beta == 0.0f ? DeviceArray<T>(values.size()) : DeviceArray<T>(values);
  };
  const DeviceArray<T> dw = start(layer.w, dw_beta);
  const DeviceArray<T> db = start(layer.bias, db_beta);
  matmul.weight_gradient({dw.data(), dw_beta}, {db.data(), db_beta}, layer.x_matrix(),
                         layer.dy_matrix());
  Numbers expected_dw = product(layer.x, layer.dy, kRows, true, false);
  Numbers expected_db(kOut);
  for (std::size_t i = 0; i < layer.dy.size(); ++i) {
    expected_db[i % kOut] += layer.dy[i];
  }
  for (std::size_t i = 0; i < expected_dw.size(); ++i) {
    expected_dw[i] += dw_beta * layer.w[i];
  }
  for (std::size_t i = 0; i < expected_db.size(); ++i) {
    expected_db[i] += db_beta * layer.bias[i];
  }
  // On a GPU, the product may be rounded before it is added to the gradient.
  CHECK(worst_error<T>(dw.read(), expected_dw) < (1.0 + dw_beta) * kTolerance<T>);
  CHECK(worst_error<T>(db.read(), expected_db) < 2.0 * kTolerance<T>);
}

constexpr MatmulOptions kWays[] = {{.fuse_gelu = true, .fuse_bias_gradient = true},
                                   {.fuse_gelu = false, .fuse_bias_gradient = false},
                                   {.tune = true}};

}  // namespace

TEST_CASE_TEMPLATE("matrix products of a linear layer with fused epilogues", T, DTYPES) {
  for (const MatmulOptions& options : kWays) {
    CAPTURE(options.fuse_gelu);
    CAPTURE(options.tune);
    check_layer<T>(options);
    for (const float dw_beta : {0.0f, 1.0f}) {
      for (const float db_beta : {0.0f, 1.0f}) {
        check_gradients<T>(options, dw_beta, db_beta);
      }
    }
  }
}

TEST_CASE("matrix products with row strides, as for the logits") {
  using T = __nv_bfloat16;
  const TestStream stream;
  const Layer<T> layer;
  constexpr std::int64_t kSeen = 13;  // number of the kOut columns of dy that are used
  Matmul<T> matmul(stream, kIn, {});
  const DeviceArray<T> dw(static_cast<std::size_t>(kSeen * kIn));
  const ConstMatrix<T> dy(layer.device_dy.data(), kRows, kSeen, kOut);
  matmul.multiply({dw.data(), kSeen, kIn}, dy.t(), layer.x_matrix());
  Numbers expected = product(layer.dy, layer.x, kRows, true, false);
  expected.resize(static_cast<std::size_t>(kSeen * kIn));
  CHECK(worst_error<T>(dw.read(), expected) < kTolerance<T>);
}

// The halves of the inner dimension cancel, so that parts rounded to bf16 give a wrong sum. All
// sums are exact in fp32.
TEST_CASE("parts of a long inner dimension are added in fp32") {
  using T = __nv_bfloat16;
  constexpr std::int64_t kInner = 4096;
  constexpr std::int64_t kSide = 16;
  std::vector<float> a, b;
  for (std::int64_t k = 0; k < kInner; ++k) {
    for (std::int64_t i = 0; i < kSide; ++i) {
      a.push_back(static_cast<float>((k % (kInner / 2) * 7 + i) % 13) *
                  (k < kInner / 2 ? 1.0f : -1.0f));
      b.push_back(static_cast<float>((k % (kInner / 2) + 3 * i) % 5) +
                  (k == kInner - 1 ? 1.0f : 0.0f));
    }
  }
  const TestStream stream;
  Matmul<T> matmul(stream, kInner, {});
  const DeviceArray<T> device_a(a), device_b(b), out(kSide * kSide);
  matmul.multiply({out.data(), kSide, kSide}, ConstMatrix<T>(device_a.data(), kInner, kSide).t(),
                  {device_b.data(), kInner, kSide});
  CHECK(worst_error<T>(out.read(), product(a, b, kInner, true, false)) < kTolerance<T>);
}

TEST_CASE("environment variables choose how matrix products are computed") {
  const auto read = [](const char* fuse, const char* tune) {
    setenv("TRAIN_GPT_FUSE", fuse, 1);
    setenv("TRAIN_GPT_TUNE", tune, 1);
    const MatmulOptions options = MatmulOptions::from_environment();
    unsetenv("TRAIN_GPT_FUSE");
    unsetenv("TRAIN_GPT_TUNE");
    return options;
  };
  CHECK(MatmulOptions::from_environment().fuse_gelu);
  CHECK(MatmulOptions::from_environment().fuse_bias_gradient);
  CHECK_FALSE(MatmulOptions::from_environment().tune);
  CHECK(read("gelu", "1").tune);
  CHECK_FALSE(read("gelu", "0").tune);
  CHECK_FALSE(read("none", "").fuse_gelu);
  CHECK_FALSE(read("gelu", "").fuse_bias_gradient);
  CHECK(read("gelu,bias", "").fuse_bias_gradient);
  CHECK(read("gelu,bias", "").fuse_gelu);
}

TEST_CASE("a missing cuBLASLt that the environment names is reported by name") {
  const char* before = std::getenv("ACC_CUBLASLT_LIBRARY");
  const std::string kept = before == nullptr ? "" : before;
  setenv("ACC_CUBLASLT_LIBRARY", "/nowhere/libcublasLt.so.13", 1);
  CHECK_THROWS_WITH_AS(CublasLt{}, doctest::Contains("ACC_CUBLASLT_LIBRARY=/nowhere/libcublasLt"),
                       acc::Error);
  kept.empty() ? unsetenv("ACC_CUBLASLT_LIBRARY") : setenv("ACC_CUBLASLT_LIBRARY", kept.c_str(), 1);
}
