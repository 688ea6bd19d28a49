// SPDX-License-Identifier: Apache-2.0
#include "device_array.hpp"
#include "kernels.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

using namespace standin_test;

namespace {

std::vector<int> counting(std::size_t numel) {
  std::vector<int> values(numel);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

/// Sums of consecutive parts with `each` values.
template <typename T>
std::vector<T> block_sums(const std::vector<T>& values, std::size_t each) {
  std::vector<T> sums;
  for (std::size_t i = 0; i < values.size(); i += each) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i);
    sums.push_back(std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(each), T{}));
  }
  return sums;
}

}  // namespace

TEST_CASE("each thread of a grid in three dimensions runs once") {
  const DeviceArray<int> out(2 * 3 * 4 * 5 * 6 * 7);
  REQUIRE(number_threads(dim3(2, 3, 4), dim3(5, 6, 7), out.data()) == cudaSuccess);
  CHECK(out.read() == counting(2 * 3 * 4 * 5 * 6 * 7));
}

TEST_CASE("a kernel without barriers strides over more elements than threads") {
  const DeviceArray<float> values(std::vector<float>(1000, 3.0F));
  REQUIRE(scale_add({.blocks = 3, .threads = 96}, values.data(), 1000, 2.0F) == cudaSuccess);
  CHECK(values.read() == std::vector<float>(1000, 7.0F));
}

TEST_CASE("barriers order shared memory") {
  const DeviceArray<int> values(counting(4 * 256));
  const DeviceArray<int> out(4);
  REQUIRE(sum_with_barriers({.blocks = 4, .threads = 256}, values.data(), out.data()) ==
          cudaSuccess);
  CHECK(out.read() == block_sums(counting(4 * 256), 256));
}

TEST_CASE("without its barriers the same kernel gives wrong sums") {
  const DeviceArray<int> values(counting(16 * 256));
  const DeviceArray<int> out(16);
  REQUIRE(sum_without_barriers({.blocks = 16, .threads = 256}, values.data(), out.data()) ==
          cudaSuccess);
  CHECK(out.read() != block_sums(counting(16 * 256), 256));
}

TEST_CASE("shuffles and dynamic shared memory sum a block") {
  std::vector<double> input(3 * 512);
  std::iota(input.begin(), input.end(), 0.5);
  const DeviceArray<double> values(input);
  const DeviceArray<double> out(3);
  const Launch launch{.blocks = 3, .threads = 512, .shared_bytes = 16 * sizeof(double)};
  REQUIRE(sum_with_shuffles(launch, values.data(), out.data()) == cudaSuccess);
  CHECK(out.read() == block_sums(input, 512));
}

TEST_CASE("warp functions give each lane the documented result") {
  const DeviceArray<int> out(32 * 7);
  REQUIRE(warp_functions(out.data()) == cudaSuccess);
  const std::vector<int> got = out.read();
  for (int lane = 0; lane < 32; ++lane) {
    CAPTURE(lane);
    const int* mine = got.data() + lane * 7;
    CHECK(mine[0] == (lane ^ 1));
    CHECK(mine[1] == (lane == 31 ? 31 : lane + 1));
    CHECK(mine[2] == (lane == 0 ? 0 : lane - 1));
    CHECK(mine[3] == lane / 8 * 8 + 3);
    CHECK(static_cast<unsigned>(mine[4]) == 0xaaaaaaaaU);
    CHECK(mine[5] == 1);
    CHECK(mine[6] == 0);
  }
}

TEST_CASE("atomics see every thread") {
  const DeviceArray<int> as_int(std::vector<int>{0});
  const DeviceArray<float> as_float(std::vector<float>{0});
  const DeviceArray<double> as_double(std::vector<double>{0});
  const DeviceArray<int> largest(std::vector<int>{-1});
  REQUIRE(count_threads({.blocks = 5, .threads = 70}, as_int.data(), as_float.data(),
                        as_double.data(), largest.data()) == cudaSuccess);
  CHECK(as_int.read().front() == 350);
  CHECK(as_float.read().front() == 350.0F);
  CHECK(as_double.read().front() == 350.0);
  CHECK(largest.read().front() == 349);
}

TEST_CASE("more than 48 KiB of shared memory must be allowed first, and 227 KiB is the limit") {
  constexpr int kMost = 227 * 1024;
  const DeviceArray<int> sum(std::vector<int>{0});
  CHECK(fill_shared(kMost, sum.data()) == cudaErrorInvalidValue);
  CHECK(allow_shared(kMost + 1) == cudaErrorInvalidValue);
  CHECK(allow_shared(kMost) == cudaSuccess);
  CHECK(fill_shared(kMost + 1, sum.data()) == cudaErrorInvalidValue);
  CHECK(fill_shared(kMost, sum.data()) == cudaSuccess);
  CHECK(sum.read().front() == kMost);
}

TEST_CASE("launches that CUDA refuses") {
  const DeviceArray<float> values(std::vector<float>(1, 3.0F));
  const auto launch = [&](const Launch& shape) { return scale_add(shape, values.data(), 1, 2.0F); };
  CHECK(launch({.blocks = 0}) == cudaErrorInvalidConfiguration);
  CHECK(launch({.threads = 0}) == cudaErrorInvalidConfiguration);
  CHECK(launch({.threads = 1025}) == cudaErrorInvalidConfiguration);
  CHECK(launch({.shared_bytes = 48 * 1024 + 1}) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(values.read().front() == 3.0F);
}
