// SPDX-License-Identifier: Apache-2.0
// Bandwidth of the process group's collectives, defined as in Gloo's benchmark: `bytes` is the size
// of the full buffer, algbw = bytes / time. Measures two kinds of memory: "group" is allocated by
// the group, and peers read it in place (the runtime uses this); "private" is any other memory,
// which is staged. Run under acclaunch; rank 0 prints one line of JSON per measurement.
//
//   acclaunch --cpu --num_processes 2 collectives_bench [FROM_BYTES TO_BYTES SECONDS_EACH]

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/settings/environment.hpp"
#include "collectives/make_group.hpp"
#include "device/cpu_device.hpp"
#include "timing.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

namespace {

using acc::DType;
using acc::ReduceOp;
using acc::bench::seconds_of;
using acc::collectives::ProcessGroup;

double slowest(ProcessGroup& group, double value) {
  std::vector<double> figure = {value};
  group.all_reduce(figure, ReduceOp::max)->wait();
  return figure[0];
}

/// Returns the median over the repetitions of the slowest rank's time. All ranks make the same
/// number of repetitions.
double measure(ProcessGroup& group, double budget, const std::function<void()>& call) {
  call();
  group.barrier()->wait();
  const double estimate = slowest(group, seconds_of(call));
  const int repetitions = std::clamp(static_cast<int>(budget / std::max(estimate, 1e-7)), 3, 500);
  std::vector<double> samples;
  for (int i = 0; i < repetitions; ++i) {
    group.barrier()->wait_released();
    samples.push_back(seconds_of(call));
  }
  return slowest(group, acc::bench::median(samples));
}

void run(ProcessGroup& group, std::size_t nbytes, double budget) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t numel = nbytes / sizeof(float) / ranks * ranks;
  const std::size_t shard = numel / ranks;
  const auto contribution = group.allocate_contribution(numel * sizeof(float));
  const auto gathered = group.allocate_gathered(numel * sizeof(float));
  std::vector<float> full(numel, 1.0F);
  std::vector<float> part(shard, 1.0F);
  std::fill_n(contribution->as<float>(), numel, 1.0F);

  const auto report = [&](const char* op, const char* memory, const std::function<void()>& call) {
    const double seconds = measure(group, budget, call);
    if (group.rank() == 0) {
      std::printf(
          "{\"op\": \"%s\", \"memory\": \"%s\", \"bytes\": %zu, \"world\": %zu, "
          "\"median_us\": %.1f, \"algbw_gbps\": %.3f}\n",
          op, memory, numel * sizeof(float), ranks, seconds * 1e6,
          static_cast<double>(numel * sizeof(float)) / seconds / 1e9);
      std::fflush(stdout);
    }
  };
  const std::size_t shard_nbytes = shard * sizeof(float);
  report("all_gather", "group",
         [&] { group.all_gather(part.data(), gathered->data(), shard_nbytes)->wait_released(); });
  report("all_gather", "private",
         [&] { group.all_gather(part.data(), full.data(), shard_nbytes)->wait_released(); });
  report("reduce_scatter", "group", [&] {
    group.reduce_scatter(contribution->data(), part.data(), shard, DType::float32, {})
        ->wait_released();
  });
  report("reduce_scatter", "private", [&] {
    group.reduce_scatter(full.data(), part.data(), shard, DType::float32, {})->wait_released();
  });
  const float mean = 1.0F / static_cast<float>(ranks);  // keeps the values finite over repetitions
  report("all_reduce", "group", [&] {
    group.all_reduce(contribution->as<float>(), numel, acc::DType::float32, mean)->wait_released();
  });
  report("all_reduce", "private",
         [&] { group.all_reduce(full.data(), numel, acc::DType::float32, mean)->wait_released(); });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::size_t from = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{64} << 10;
    const std::size_t to = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::size_t{64} << 20;
    const double budget = argc > 3 ? std::strtod(argv[3], nullptr) : 1.0;
    const auto settings =
        acc::settings::settings_from_environment(acc::settings::current_environment());
    const auto store = acc::collectives::connect_store(settings.identity);
    std::vector<int> ranks(static_cast<std::size_t>(settings.identity.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto group = acc::collectives::GroupFactory(settings, store.get(),
                                                      acc::device::open_cpu_device(), nullptr)
                           .make(ranks, "bench");
    for (std::size_t nbytes = from; nbytes <= to; nbytes *= 4) {
      run(*group, nbytes, budget);
    }
    group->barrier()->wait_released();
    return 0;
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "collectives_bench: %s\n", error.what());
    return acc::exit_status(error);
  }
}
