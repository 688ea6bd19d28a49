// SPDX-License-Identifier: Apache-2.0
#include "cuda/fp8.hpp"

#include "../random_values.hpp"
#include "device_array.hpp"

#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <vector>

using namespace train_gpt;
using namespace train_gpt::cuda;

namespace {

using T = __nv_bfloat16;

bool has_fp8() {
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "a property");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "a property");
  return 10 * major + minor >= 89;
}

std::vector<std::uint8_t> read_bytes(const DeviceBuffer<std::uint8_t>& buffer, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  check(cudaDeviceSynchronize(), "a test");
  check(cudaMemcpy(bytes.data(), buffer.data(), count, cudaMemcpyDeviceToHost), "a copy");
  return bytes;
}

double norm(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum);
}

/// |got - expected| / |expected|
double relative_error(const std::vector<float>& got, const std::vector<double>& expected) {
  std::vector<double> difference(expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference[i] = static_cast<double>(got[i]) - expected[i];
  }
  return norm(difference) / norm(expected);
}

}  // namespace

TEST_CASE("tensors are rounded to fp8, as they are and transposed, and their amax is recorded") {
  struct Case {
    std::int64_t rows, cols;
    bool e5m2;
  };
  for (const Case& c : {Case{16, 16, false}, Case{80, 144, true}, Case{64, 208, false}}) {
    CAPTURE(c.rows);
    const TestStream stream;
    const std::int64_t count = c.rows * c.cols;
    const auto values = rounded<T>(random_values(count, 1, 3.0));
    const DeviceArray<T> x(values);
    constexpr float kScale = 200.0f;  // so that some numbers are too large for e4m3
    const DeviceArray<float> scale(std::vector<float>{kScale}), amax(std::vector<float>{0.5f});
    const DeviceBuffer<std::uint8_t> plain(count, "a test"), transposed(count, "a test");
    fp8_quantize(stream, x.data(), c.rows, c.cols, c.e5m2, scale.data(), plain.data(),
                 transposed.data(), amax.data());
    const auto bytes = read_bytes(plain, values.size());
    const auto turned = read_bytes(transposed, values.size());
    float highest = 0.0f;
    for (std::int64_t row = 0; row < c.rows; ++row) {
      for (std::int64_t col = 0; col < c.cols; ++col) {
        const auto at = static_cast<std::size_t>(row * c.cols + col);
        const auto expected = __nv_cvt_float_to_fp8(values[at] * kScale, __NV_SATFINITE,
                                                    c.e5m2 ? __NV_E5M2 : __NV_E4M3);
        REQUIRE(bytes[at] == expected);
        REQUIRE(turned[static_cast<std::size_t>(col * c.rows + row)] == expected);
        highest = std::max(highest, std::abs(values[at]));
      }
    }
    CHECK(amax.read().front() == highest);
  }
}

TEST_CASE("scales follow the last or the largest amax, and survive zeros and infinities") {
  const TestStream stream;
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    bool use_max;
    int margin;
    std::vector<float> amax;
    float e4m3;  ///< expected scale
  };
  for (const Case& c : {Case{false, 0, {2.0f, 7.0f}, 64.0f}, Case{true, 0, {7.0f, 2.0f}, 64.0f},
                        Case{false, 1, {7.0f}, 32.0f}, Case{false, 0, {7.0f, 0.0f}, 64.0f},
                        Case{false, 0, {7.0f, infinity}, 64.0f},
                        Case{true, 0, {1000.0f, 2.0f, 7.0f}, 64.0f}, Case{false, 0, {}, 1.0f}}) {
    const DeviceArray<float> scale(2), inverse(2 * kFp8ScaleStride), amax(2), history(4);
    const Fp8Scales scales{
        scale.data(), inverse.data(), amax.data(), history.data(), 2, 2, c.margin, c.use_max, 2, 1};
    fp8_reset_scales(stream, scales);
    check(cudaStreamSynchronize(stream), "a test");
    for (std::size_t i = 0; i < c.amax.size(); ++i) {
      const std::vector<float> both(2, c.amax[i]);
      copy_to_device(amax.data(), both.data(), 2 * sizeof(float));
      fp8_update_scales(stream, scales, static_cast<std::int64_t>(i % 2));
      check(cudaStreamSynchronize(stream), "a test");
    }
    CHECK(scale.read().front() == c.e4m3);
    CHECK(scale.read().back() == (c.amax.empty() ? 1.0f : 128.0f * c.e4m3));  // e5m2
    CHECK(inverse.read().front() == 1.0f / c.e4m3);
  }
}

TEST_CASE("a linear layer in fp8 is close to the same in bf16 from the second micro-step on") {
  if (!has_fp8()) {
    return;
  }
  const TestStream stream;
  for (const std::int64_t rows : {64, 40}) {  // 40 rows are no multiple of 16: bf16
    CAPTURE(rows);
    constexpr std::int64_t kIn = 96;
    constexpr std::int64_t kOut = 48;
    const auto x = rounded<T>(random_values(rows * kIn, 1));
    const auto w = rounded<T>(random_values(kIn * kOut, 2, 0.02));
    const auto bias = rounded<T>(random_values(kOut, 3, 0.1));
    const auto dy = rounded<T>(random_values(rows * kOut, 4, 1e-6));
    const auto residual = rounded<T>(random_values(rows * kOut, 5, 0.1));
    const auto dw_before = rounded<T>(random_values(kIn * kOut, 6, 1e-6));
    std::vector<double> y(residual.begin(), residual.end()), dx(x.size());
    std::vector<double> dw(dw_before.begin(), dw_before.end()), db(kOut);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < kOut; ++o) {
        const auto at = static_cast<std::size_t>(r * kOut + o);
        y[at] += bias[static_cast<std::size_t>(o)];
        db[static_cast<std::size_t>(o)] += dy[at];
        for (std::int64_t i = 0; i < kIn; ++i) {
          const auto xi = static_cast<std::size_t>(r * kIn + i);
          const auto wi = static_cast<std::size_t>(i * kOut + o);
          y[at] += static_cast<double>(x[xi]) * w[wi];
          dx[xi] += static_cast<double>(dy[at]) * w[wi];
          dw[wi] += static_cast<double>(x[xi]) * dy[at];
        }
      }
    }
    Matmul<T> matmul(stream, kIn, {});
    Fp8 fp8(stream, matmul, {}, 1, rows, kIn, kIn * kOut);
    const DeviceArray<T> device_x(x), device_w(w), device_bias(bias), device_dy(dy);
    const DeviceArray<T> device_residual(residual);
    for (int micro_step = 0; micro_step < 3; ++micro_step) {
      CAPTURE(micro_step);
      const DeviceArray<T> out(residual.size()), d_x(x.size()), d_w(dw_before), d_b(bias.size());
      fp8.begin_micro_step();
      fp8.forward(0, {out.data(), rows, kOut}, {device_x.data(), rows, kIn},
                  {device_w.data(), kIn, kOut}, device_bias.data(), device_residual.data());
      fp8.backward(0, {d_x.data(), rows, kIn}, {d_w.data(), 1.0f}, {d_b.data(), 0.0f},
                   {device_x.data(), rows, kIn}, {device_dy.data(), rows, kOut},
                   {device_w.data(), kIn, kOut});
      const bool in_fp8 = micro_step > 0 && rows % 16 == 0;
      // e4m3 rounds by up to 1/16, e5m2 by up to 1/8; errors of products average out.
      const double least = in_fp8 ? 0.003 : 0.0;
      const double most = in_fp8 ? 0.06 : 0.006;
      for (const double error : {relative_error(out.read(), y), relative_error(d_x.read(), dx),
                                 relative_error(d_w.read(), dw)}) {
        CHECK(error >= least);
        CHECK(error < most);
      }
      CHECK(relative_error(d_b.read(), db) < 0.006);
    }
  }
}

TEST_CASE("fp8 products that cuBLASLt cannot compute are refused, and nothing is queued") {
  if (!has_fp8()) {
    return;
  }
  const TestStream stream;
  Matmul<T> matmul(stream, 64, {});
  const DeviceBuffer<std::uint8_t> a(64 * 64 + 16, "a test"), b(64 * 64, "a test");
  check(cudaMemset(a.data(), 0, 64 * 64 + 16), "a fill");
  check(cudaMemset(b.data(), 0, 64 * 64), "a fill");
  const DeviceArray<float> one(std::vector<float>{1.0f});
  const DeviceArray<T> out(64 * 64);
  struct Case {
    const char* what;
    std::int64_t rows, inner, cols, shift;
    cudaDataType_t a, b;
    bool good;
  };
  for (const Case& c : {Case{"e4m3", 32, 48, 16, 0, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, true},
                        Case{"mixed", 32, 48, 16, 0, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, true},
                        Case{"e5m2", 32, 48, 16, 0, CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, false},
                        Case{"inner", 32, 40, 16, 0, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, false},
                        Case{"address", 32, 48, 16, 8, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, false}}) {
    CAPTURE(c.what);
    CHECK(matmul.multiply_fp8({out.data(), c.rows, c.cols},
                              {a.data() + c.shift, c.rows, c.inner, c.a, one.data()},
                              {b.data(), c.cols, c.inner, c.b, one.data()}, 0.0f) == c.good);
  }
}
