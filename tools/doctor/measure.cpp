// SPDX-License-Identifier: Apache-2.0
#include "doctor/measure.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "collectives/make_group.hpp"
#include "device/cpu_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <future>
#include <thread>
#include <vector>

namespace acc::doctor {
namespace {

using collectives::ProcessGroup;
using Clock = std::chrono::steady_clock;

constexpr double kSecondsEach = 0.15;  ///< target time of the latency test and of one transfer
constexpr std::size_t kSmallest = 64 << 10, kLargest = 64 << 20;  ///< bytes per transfer

double seconds_of(const std::function<void()>& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The larger of both machines' times. With it both choose the same number of repetitions.
double slower(ProcessGroup& group, double own_seconds) {
  std::vector<double> figure = {own_seconds};
  group.all_reduce(figure, ReduceOp::max)->wait();
  return std::max(figure[0], 1e-6);
}

/// The first decile of the samples, which shows the link rather than other load on the machines'
/// CPUs.
double latency_us(ProcessGroup& group) {
  const auto call = [&] {
    float one = 1.0F;  // the smallest collective
    group.all_reduce(&one, 1, acc::DType::float32, 1.0F)->wait();
  };
  call();
  const double estimate = slower(group, seconds_of(call));
  const int repetitions = std::clamp(static_cast<int>(kSecondsEach / estimate), 5, 500);
  std::vector<double> samples;
  for (int i = 0; i < repetitions; ++i) {
    samples.push_back(seconds_of(call));
  }
  const auto quick = samples.begin() + repetitions / 10;
  std::nth_element(samples.begin(), quick, samples.end());
  return slower(group, *quick) * 1e6;
}

/// The best of three transfers, which shows the link rather than other load.
double bandwidth_gbps(ProcessGroup& group) {
  std::vector<std::byte> mine, all;
  const auto transfer = [&](std::size_t nbytes) {
    mine.resize(nbytes);
    all.resize(2 * nbytes);
    group.barrier()->wait();
    return slower(group, seconds_of([&] {
                    group.all_gather(mine.data(), all.data(), nbytes)->wait_released();
                  }));
  };
  transfer(kSmallest);
  // Increases the size step by step. A size computed from a small transfer could be far too large,
  // since many links let a short burst pass faster than their sustained rate.
  std::size_t nbytes = kSmallest;
  double best = transfer(nbytes);
  while (best < kSecondsEach && nbytes < kLargest) {
    nbytes *= 4;
    best = transfer(nbytes);
  }
  best = std::min({best, transfer(nbytes), transfer(nbytes)});
  return 8.0 * static_cast<double>(nbytes) / best / 1e9;
}

Measurements measure(const settings::RuntimeSettings& settings,
                     const std::shared_ptr<rendezvous::Store>& store, const std::string& name,
                     int a, int b) {
  rendezvous::PrefixStore own(name, store);
  const auto group = collectives::GroupFactory(settings, &own, device::open_cpu_device(), nullptr)
                         .make({a, b}, "pair");
  Measurements figures;
  figures.latency_us = latency_us(*group);
  figures.bandwidth_gbps = bandwidth_gbps(*group);
  group->barrier()->wait_released();
  return figures;
}

}  // namespace

Measurements measure_pair(settings::RuntimeSettings settings,
                          const std::shared_ptr<rendezvous::Store>& store, const std::string& name,
                          int a, int b) {
  // Shorter than the limit below, because the group's own error says more.
  settings.collective_timeout = kMeasureLimit / 2;
  const auto own_store = std::shared_ptr(store->clone());
  std::promise<Measurements> promise;
  std::future<Measurements> figures = promise.get_future();
  std::thread([=, settings = std::move(settings), promise = std::move(promise)]() mutable {
    try {
      promise.set_value(measure(settings, own_store, name, a, b));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  if (figures.wait_for(kMeasureLimit) != std::future_status::ready) {
    throw Error(Errc::timeout,
                fmt::format("timeout: not finished within {} s", kMeasureLimit.count()));
  }
  return figures.get();
}

}  // namespace acc::doctor
