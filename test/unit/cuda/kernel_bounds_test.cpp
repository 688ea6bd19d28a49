// SPDX-License-Identifier: Apache-2.0
// Runs the runtime's kernels under the address sanitizer, on arrays that end at the last element
// that a kernel may access. kernels_test.cpp checks the results.
#include "cuda/kernels/kernels.hpp"
#include "support/update_steps.hpp"
#include "unit/standin/device_array.hpp"

#include <doctest/doctest.h>

#include <array>

using namespace acc;
using standin_test::check;
using standin_test::DeviceArray;

namespace {

// Sizes around those of a quad, of a block's row of quads and of a tile; offsets in elements.
constexpr std::array<std::size_t, 9> kSizes = {1, 3, 4, 5, 1023, 1025, 4095, 4097, 20'011};
constexpr std::array<std::size_t, 3> kOffsets = {0, 1, 4};
constexpr cuda::Launch kLaunch{.stream = nullptr, .multiprocessors = 132};

std::size_t size_of(DType dtype) {
  return dtype == DType::float32 ? 4 : 2;
}

// Zeros in device memory, `offset` elements after an aligned address.
class Array {
 public:
  Array(std::size_t numel, DType dtype, std::size_t offset = 0)
      : bytes_((offset + numel) * size_of(dtype)), offset_(offset * size_of(dtype)) {
    check(cudaMemset(bytes_.data(), 0, (offset + numel) * size_of(dtype)));
    check(cudaDeviceSynchronize());
  }
  [[nodiscard]] void* data() const { return bytes_.data() + offset_; }
  [[nodiscard]] float* floats() const { return static_cast<float*>(data()); }

 private:
  DeviceArray<std::byte> bytes_;
  std::size_t offset_;
};

void run_loops(std::size_t numel, std::size_t offset) {
  const Array floats(numel, DType::float32, offset);
  const Array sum(2, DType::float32);
  const DeviceArray<double> partials(cuda::kNormPartials);
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Array half(numel, dtype, offset);
    check(cuda::cast(floats.data(), DType::float32, half.data(), dtype, numel, kLaunch));
    check(cuda::cast(half.data(), dtype, floats.data(), DType::float32, numel, kLaunch));
    check(cuda::add_scaled(half.data(), dtype, floats.floats(), numel, 0.5F, true, kLaunch));
    check(cudaDeviceSynchronize());
  }
  check(cuda::scale_clamped(floats.floats(), numel, 0.5F, 1.0F, kLaunch));
  check(cuda::add_squared_norm(floats.floats(), numel, static_cast<double*>(sum.data()),
                               partials.data(), kLaunch));
  check(cudaDeviceSynchronize());
}

void run_updates(std::size_t numel, DType weight_dtype, DType moment_dtype) {
  const Array weights(numel, weight_dtype);
  const Array grads(numel, DType::float32);
  const Array first(numel, moment_dtype);
  const Array second(numel, moment_dtype);
  const Array third(numel, moment_dtype);
  const Array rounded(numel, DType::bfloat16);
  const bool full = weight_dtype == DType::float32;
  const device::UpdateArrays arrays{.weights = weights.data(),
                                    .grads = grads.floats(),
                                    .first = first.data(),
                                    .second = second.data(),
                                    .third = third.data(),
                                    .rounded = full ? rounded.data() : nullptr,
                                    .weight_dtype = weight_dtype,
                                    .moment_dtype = moment_dtype};
  const auto end = static_cast<std::int64_t>(numel);
  const std::vector<device::UpdateRange> ranges =
      numel < 16 ? std::vector<device::UpdateRange>{{.begin = 0, .numel = end}}
                 : std::vector<device::UpdateRange>{{.begin = 0, .numel = 7},
                                                    {.begin = 8, .numel = end - 8}};
  for (const auto& step : test::steps_of_all_rules(1)) {
    check(cuda::update(step, arrays, ranges, kLaunch));
  }
  check(cudaDeviceSynchronize());
}

}  // namespace

TEST_CASE("kernels access nothing outside of their arrays") {
  for (const std::size_t numel : kSizes) {
    CAPTURE(numel);
    for (const std::size_t offset : kOffsets) {
      CHECK_NOTHROW(run_loops(numel, offset));
    }
    CHECK_NOTHROW(run_updates(numel, DType::float32, DType::float32));
    CHECK_NOTHROW(run_updates(numel, DType::bfloat16, DType::bfloat16));
  }
}
