// SPDX-License-Identifier: Apache-2.0
#include "device/cpu_device.hpp"

#include "device/thread_team.hpp"

#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

namespace acc::device {
namespace {

constexpr std::int64_t kNumel = 200'003;  // several tiles and a remainder

/// Two parameters of a shard and a gap between them.
const std::vector<UpdateRange> kRanges = {{0, 150'000, true}, {150'016, 49'987, false}};

struct Shard {
  std::vector<float> weights = std::vector<float>(kNumel);
  std::vector<float> grads = std::vector<float>(kNumel);
  std::vector<float> first = std::vector<float>(kNumel);
  std::vector<float> second = std::vector<float>(kNumel);
  std::vector<std::uint16_t> rounded = std::vector<std::uint16_t>(kNumel);

  Shard() {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = std::sin(static_cast<float>(i));
      grads[i] = std::cos(static_cast<float>(3 * i));
    }
  }
  UpdateArrays arrays() {
    return {.weights = weights.data(),
            .grads = grads.data(),
            .first = first.data(),
            .second = second.data(),
            .rounded = rounded.data()};
  }
};

kernels::AdamWStep without_gradient(float decay) {
  return {.grad_scale = 0.0F,
          .decay = decay,
          .beta1_complement = 0.1F,
          .beta2 = 0.9F,
          .beta2_complement = 0.1F,
          .sqrt_bias_correction2 = 1.0F,
          .eps = 1e-8F,
          .step_size = 0.1F};
}

}  // namespace

TEST_CASE("memory that each step frees is used again, even if the program keeps a part of each") {
  const auto device = open_cpu_device();
  constexpr int kSteps = 20'000;
  std::vector<std::unique_ptr<char[]>> kept;
  kept.reserve(std::size_t{3} * kSteps);
  std::size_t kept_nbytes = 0;
  const auto heap = [] { return ::mallinfo2().arena; };
  const std::size_t before = heap();
  for (int step = 0; step < kSteps; ++step) {
    std::vector<MemoryPtr> gradients;
    for (const std::size_t nbytes : {100, 116, 132}) {
      gradients.push_back(device->allocate(32'768, "gradients"));
      kept.push_back(std::make_unique<char[]>(nbytes));
      kept_nbytes += nbytes + 16;
    }
  }
  CHECK(heap() - before < 2 * kept_nbytes);
}

TEST_CASE("weight decay applies only to ranges with decay, and gaps do not change") {
  const auto device = open_cpu_device();
  const Shard before;
  Shard shard;
  device->update(without_gradient(0.5F), shard.arrays(), kRanges, device->compute());
  CHECK(shard.weights[7] == 0.5F * before.weights[7]);
  CHECK(shard.weights[150'003] == before.weights[150'003]);  // the gap
  CHECK(shard.rounded[150'003] == 0);
  CHECK(shard.weights[160'000] == before.weights[160'000]);

  Shard descended;
  const kernels::SgdStep sgd{.grad_scale = 1.0F, .decay = 1.0F, .lr = 0.5F};
  device->update(sgd, descended.arrays(), kRanges, device->compute());
  CHECK(descended.weights[7] == before.weights[7] - 0.5F * (before.grads[7] + before.weights[7]));
  CHECK(descended.weights[160'000] == before.weights[160'000] - 0.5F * before.grads[160'000]);
}

TEST_CASE("an update gives bitwise equal results on one thread and on several") {
  auto coefficients = without_gradient(0.99F);
  coefficients.grad_scale = 0.5F;
  std::vector<Shard> shards(3);
  std::vector<double> norms;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto device = open_cpu_device(static_cast<int>(i) + 1);
    device->update(coefficients, shards[i].arrays(), kRanges, device->compute());
    norms.push_back(1.0);
    device->add_squared_norm(shards[i].weights.data(), kNumel, &norms.back(), device->compute());
  }
  CHECK(shards[1].weights == shards[0].weights);
  CHECK(shards[2].weights == shards[0].weights);
  CHECK(shards[2].rounded == shards[0].rounded);
  CHECK(norms[2] == norms[1]);
  CHECK(norms[1] == doctest::Approx(norms[0]).epsilon(1e-12));
}

TEST_CASE("a thread team runs every part once, with any number of threads") {
  for (const int size : {1, 2, 5}) {
    ThreadTeam team(size);
    for (const std::size_t parts : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
      std::vector<std::atomic<int>> calls(parts);
      team.run(parts, [&](std::size_t part) { ++calls[part]; });
      CHECK(std::all_of(calls.begin(), calls.end(), [](const auto& each) { return each == 1; }));
    }
  }
}

TEST_CASE("memory is zero-filled, aligned, and counted by purpose") {
  const auto device = open_cpu_device();
  const auto weights = device->allocate(1000, "weights");
  CHECK(reinterpret_cast<std::uintptr_t>(weights->data()) % 256 == 0);
  CHECK(weights->as<float>()[249] == 0.0F);
  {
    const auto moments = device->allocate(3000, "moments");
    const MemoryMetrics figures = device->memory();
    CHECK(figures.allocated == 4000);
    REQUIRE(figures.holders.size() == 2);
    CHECK(figures.holders[0].what == "moments");
  }
  CHECK(device->memory().allocated == 1000);
  CHECK(device->memory().peak_allocated == 4000);
}

}  // namespace acc::device
