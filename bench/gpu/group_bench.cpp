// SPDX-License-Identifier: Apache-2.0
// Measures the collectives on device memory as the runtime issues them: one after another, ordered
// by the compute stream, with the host waiting only at the end. Runs under acclaunch. Rank 0 prints
// one line of JSON per collective; algbw_gbps is the size of the full buffer over the time of a
// call.
//
//   acclaunch --use_fsdp --num_processes N group_bench [FROM_BYTES TO_BYTES CALLS]

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/settings/environment.hpp"
#include "collectives/make_group.hpp"
#include "device/open_device.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

namespace {

using namespace acc;
using Clock = std::chrono::steady_clock;

class Bench {
 public:
  Bench(collectives::ProcessGroup& group, device::Device& device, int calls)
      : group_(group), device_(device), calls_(calls) {}

  void run(std::size_t nbytes) {
    const auto ranks = static_cast<std::size_t>(group_.size());
    const std::size_t shard = nbytes / sizeof(float) / ranks;
    const std::size_t numel = shard * ranks;
    const auto full = group_.allocate_contribution(numel * sizeof(float));
    const auto gathered = group_.allocate_gathered(numel * sizeof(float));
    const auto part = device_.allocate(shard * sizeof(float), "bench");
    measure("all_gather", numel, [&] {
      return group_.all_gather(part->data(), gathered->data(), shard * sizeof(float));
    });
    measure("reduce_scatter", numel, [&] {
      return group_.reduce_scatter(full->data(), part->as<float>(), shard, DType::float32, {});
    });
    measure("all_reduce", numel,
            [&] { return group_.all_reduce(full->as<float>(), numel, acc::DType::float32, 1.0F); });
  }

 private:
  void measure(const char* op, std::size_t numel,
               const std::function<collectives::WorkPtr()>& issue) {
    constexpr int kWarmUps = 2;
    Clock::time_point begin;
    for (int call = -kWarmUps; call < calls_; ++call) {
      if (call == 0) {
        device_.synchronize();
        group_.barrier()->wait_released();
        begin = Clock::now();
      }
      issue()->wait_released();
    }
    device_.synchronize();
    const std::chrono::duration<double> total = Clock::now() - begin;
    report(op, numel * sizeof(float), total.count() / calls_);
  }

  void report(const char* op, std::size_t nbytes, double seconds) {
    std::vector<double> slowest = {seconds};
    group_.all_reduce(slowest, ReduceOp::max)->wait();
    if (group_.rank() == 0) {
      std::printf(
          "{\"op\": \"%s\", \"group\": \"%s\", \"bytes\": %zu, \"world\": %d, \"mean_us\": %.1f, "
          "\"algbw_gbps\": %.3f}\n",
          op, group_.describe().c_str(), nbytes, group_.size(), slowest[0] * 1e6,
          static_cast<double>(nbytes) / slowest[0] / 1e9);
      std::fflush(stdout);
    }
  }

  collectives::ProcessGroup& group_;
  device::Device& device_;
  int calls_;
};

void run(std::size_t from, std::size_t to, int calls) {
  const auto settings = settings::settings_from_environment(settings::current_environment());
  const auto opened = device::open_device(settings);
  const auto store = collectives::connect_store(settings.identity);
  std::vector<int> ranks(static_cast<std::size_t>(settings.identity.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const collectives::GroupFactory factory(settings, store.get(), opened.device, opened.backend);
  const auto group = factory.make(ranks, "bench");
  Bench bench(*group, *opened.device, calls);
  for (std::size_t nbytes = from; nbytes <= to; nbytes *= 8) {
    bench.run(nbytes);
  }
  group->barrier()->wait_released();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto argument = [&](int index, std::size_t fallback) {
      return argc > index ? std::strtoull(argv[index], nullptr, 10) : fallback;
    };
    run(argument(1, std::size_t{1} << 20), argument(2, std::size_t{64} << 20),
        static_cast<int>(argument(3, 20)));
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "group_bench: %s\n", error.what());
    return exit_status(error);
  }
}
