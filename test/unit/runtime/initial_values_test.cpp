// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"
#include "support/temporary_folder.hpp"
#include "support/weights.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Initial values of parameters and buffers: from initialisers, files, rank 0.
namespace {

using acc::plugins::MixedPrecision;
using acc::plugins::RuntimeSettings;
using acc::plugins::ShardingSettings;
using acc::plugins::Strategy;
using acc::test::Job;
using acc::test::TemporaryFolder;

/// Ranges [offset, offset + numel) for which an initialiser was called, by rank.
class Asked {
 public:
  void add(int rank, std::int64_t offset, std::size_t numel) {
    const std::lock_guard lock(mutex_);
    ranges_[rank].emplace_back(offset, static_cast<std::int64_t>(numel));
  }
  [[nodiscard]] std::vector<std::pair<std::int64_t, std::int64_t>> of(int rank) {
    const std::lock_guard lock(mutex_);
    return ranges_[rank];
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> ranges_;
};

float value_of(int rank, std::int64_t element) {
  return static_cast<float>(1000 * rank + element % 997);
}

/// A value that differs between ranks.
acc::Initializer own_of(int rank, Asked* asked = nullptr) {
  return [rank, asked](std::uint64_t, std::int64_t offset, std::span<float> out) {
    if (asked != nullptr) {
      asked->add(rank, offset, out.size());
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = value_of(rank, offset + static_cast<std::int64_t>(i));
    }
  };
}

struct Placement {
  const char* name;
  Strategy strategy;
  int num_machines = 1;
  bool copy_gathers = false;
};

const std::vector<Placement> kPlacements = {
    {"no_shard", Strategy::no_shard},
    {"shard_optimizer", Strategy::shard_optimizer},
    {"full_shard", Strategy::full_shard},
    {"full_shard copying", Strategy::full_shard, 1, true},
    {"full_shard over two machines", Strategy::full_shard, 2},
    {"hybrid_shard", Strategy::hybrid_shard, 2},
};

Job job_of(const Placement& placement, int world_size) {
  Job job = acc::test::job_of(placement.strategy, world_size, placement.num_machines);
  job.copy_gathers = placement.copy_gathers;
  return job;
}

/// Calls `body(runtime, model, unit, rank)` on every rank, with an empty unit.
template <typename Body>
void with_unit(const Job& job, const Body& body) {
  acc::test::run_ranks(job, [&](const RuntimeSettings& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(7);
    body(runtime, model, model.unit("net", "Net"), settings.identity.rank);
    runtime.barrier();
  });
}

std::vector<float> read(acc::Model& model, acc::Unit& unit, acc::Parameter parameter, int numel) {
  const auto guard = model.no_grad();
  const auto use = unit.forward();
  return acc::test::values_of(use, parameter, numel);
}

/// Number of elements that differ from `value_of(rank, element)`.
std::int64_t strangers(const std::vector<float>& values, int rank) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    count += values[i] != value_of(rank, static_cast<std::int64_t>(i));
  }
  return count;
}

}  // namespace

TEST_CASE("zero3_init: a rank computes only its shard, or the whole parameter and cuts it") {
  constexpr int kNumel = 1000;
  std::vector<float> first;
  for (const bool sharded : {true, false}) {
    CAPTURE(sharded);
    Asked asked;
    std::mutex mutex;
    Job job = acc::test::job_of(Strategy::full_shard, 3);
    job.sharding.zero3_init = sharded;
    with_unit(job, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int rank) {
      const auto values = acc::normal(1.0F);
      const auto weight = unit.parameter(
          "weight", {kNumel},
          acc::Initializer::pure([&asked, values, rank](std::uint64_t stream, std::int64_t offset,
                                                        std::span<float> out) {
            asked.add(rank, offset, out.size());
            values(stream, offset, out);
          }));
      const std::vector<float> made = read(model, unit, weight, kNumel);
      const std::lock_guard lock(mutex);
      if (!first.empty() && made != first) {
        throw std::runtime_error("other values");
      }
      first = made;
    });
    std::int64_t end = 0;
    for (int rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      const auto ranges = asked.of(rank);
      REQUIRE(ranges.size() == 1);
      if (sharded) {  // consecutive ranges, and no element twice
        CHECK(ranges[0].first == end);
        CHECK(ranges[0].second < kNumel / 2);
        end += ranges[0].second;
      } else {
        CHECK(ranges[0] == std::pair<std::int64_t, std::int64_t>{0, kNumel});
      }
    }
    CHECK(end == (sharded ? kNumel : 0));
  }
}

TEST_CASE("sync_module_states: all ranks get rank 0's values, and only rank 0 computes them") {
  constexpr int kNumel = (1 << 20) + 77;  // more than one broadcast
  for (const Placement& each : kPlacements) {
    CAPTURE(each.name);
    Asked asked;
    std::atomic<std::int64_t> wrong = 0;
    with_unit(job_of(each, 4), [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int rank) {
      unit.parameter("first", {21}, acc::ones());
      const auto weight = unit.parameter("weight", {kNumel}, own_of(rank, &asked));
      const auto buffer = unit.buffer("mean", {5}, own_of(rank, &asked));
      wrong += strangers(read(model, unit, weight, kNumel), 0);
      const auto* const mean = static_cast<const float*>(unit.data(buffer));
      wrong += strangers({mean, mean + 5}, 0);
    });
    CHECK(wrong == 0);
    CHECK(asked.of(0).size() == 3);  // two chunks of the weight, and the buffer
    for (const int rank : {1, 2, 3}) {
      CHECK(asked.of(rank).empty());
    }
  }
}

TEST_CASE("sync_module_states off: each rank computes the values that it keeps") {
  constexpr int kNumel = 64;
  Job job{.world_size = 2};
  job.sharding.sync_module_states = false;
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
    job.sharding.strategy = strategy;
    std::atomic<std::int64_t> wrong = 0;
    with_unit(job, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int rank) {
      const auto weight = unit.parameter("weight", {kNumel}, own_of(rank));
      const auto buffer = unit.buffer("mean", {5}, own_of(rank));
      const std::vector<float> values = read(model, unit, weight, kNumel);
      for (int i = 0; i < kNumel; ++i) {
        const int maker = strategy == Strategy::no_shard ? rank : i / (kNumel / 2);
        wrong += values[static_cast<std::size_t>(i)] != value_of(maker, i);
      }
      const auto* const mean = static_cast<const float*>(unit.data(buffer));
      wrong += strangers({mean, mean + 5}, rank);
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("zero3_init off: rank 0 computes a whole parameter at once for all ranks") {
  constexpr int kNumel = (1 << 20) + 77;
  Asked asked;
  std::atomic<std::int64_t> wrong = 0;
  Job job = job_of({"full_shard", Strategy::full_shard}, 2);
  job.sharding.zero3_init = false;
  with_unit(job, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int rank) {
    const auto weight = unit.parameter("weight", {kNumel}, own_of(rank, &asked));
    wrong += strangers(read(model, unit, weight, kNumel), 0);
  });
  CHECK(wrong == 0);
  CHECK(asked.of(0) == std::vector<std::pair<std::int64_t, std::int64_t>>{{0, kNumel}});
  CHECK(asked.of(1).empty());
}

TEST_CASE("an initialiser that fails on rank 0 is named on every rank") {
  for (const int machines : {1, 2}) {
    std::atomic<int> told = 0;
    const Job job = job_of({"full_shard", Strategy::full_shard, machines}, 4);
    CHECK_THROWS(with_unit(job, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int rank) {
      const auto weight =
          unit.parameter("weight", {100}, [](std::uint64_t, std::int64_t, std::span<float>) {
            throw std::runtime_error("the disk is gone");
          });
      try {
        static_cast<void>(read(model, unit, weight, 100));
      } catch (const acc::Error& error) {
        const std::string text = error.what();
        told += rank != 0 && text.find("rank 0") != std::string::npos &&
                text.find("net.weight: the disk is gone") != std::string::npos;
        throw;
      }
    }));
    CHECK(told == 3);
  }
}

TEST_CASE("cpu_ram_efficient_loading: only rank 0 opens the file, and all ranks get their part") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "weights.safetensors").string();
  constexpr int kNumel = (1 << 20) + 77;
  const auto declare = [](acc::Unit& unit, const acc::Initializer& initializer) {
    struct {
      acc::Parameter weight;
      acc::Buffer mean;
    } handles{unit.parameter("weight", {kNumel}, initializer),
              unit.buffer("mean", {5}, initializer)};
    return handles;
  };
  with_unit({.world_size = 1}, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int) {
    declare(unit, own_of(0));
    model.export_weights(path);
  });
  for (const bool efficient : {true, false}) {
    for (const Placement& each : kPlacements) {
      CAPTURE(each.name);
      CAPTURE(efficient);
      Job job = job_of(each, 4);
      job.sharding.cpu_ram_efficient_loading = efficient;
      std::atomic<std::int64_t> wrong = 0;
      std::atomic<int> refused = 0;
      with_unit(job, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int rank) {
        const auto handles = declare(unit, acc::zeros());
        try {
          model.load_weights(rank == 0 ? path : "/no/such/file");
        } catch (const acc::Error& error) {
          refused += error.code() == acc::Errc::config;
          model.load_weights(path);
        }
        wrong += strangers(read(model, unit, handles.weight, kNumel), 0);
        const auto* const mean = static_cast<const float*>(unit.data(handles.mean));
        wrong += strangers({mean, mean + 5}, 0);
      });
      CHECK(wrong == 0);
      CHECK(refused == (efficient ? 0 : 4));
    }
  }
}

TEST_CASE("buffers have the policy's dtype and are saved in files and checkpoints") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "weights.safetensors").string();
  const std::string checkpoint = (folder.path() / "checkpoint").string();
  Job job = job_of({"full_shard", Strategy::full_shard}, 2);
  job.sharding.mixed_precision = MixedPrecision::bf16;
  const auto bits = [](acc::Unit& unit, acc::Buffer buffer) {
    return static_cast<std::uint16_t*>(unit.data(buffer));
  };
  std::atomic<int> right = 0;
  with_unit(job, [&](acc::Runtime& runtime, acc::Model& model, acc::Unit& unit, int) {
    unit.parameter("weight", {9}, acc::ones());
    const auto mean = unit.buffer("mean", {2, 2}, acc::constant(1.0F));
    auto optimizer = model.optimizer(acc::AdamW{});
    right += model.buffer_dtype() == acc::DType::bfloat16 && bits(unit, mean)[3] == 0x3f80 &&
             model.memory().buffer_bytes == 4 * 2;  // whole on each rank
    bits(unit, mean)[3] = 0x4000;                   // 2.0
    model.export_weights(file);
    runtime.save(checkpoint, model, optimizer);
  });
  CHECK(right == 2);
  for (const bool from_file : {true, false}) {
    with_unit(job, [&](acc::Runtime& runtime, acc::Model& model, acc::Unit& unit, int) {
      unit.parameter("weight", {9}, acc::zeros());
      const auto mean = unit.buffer("mean", {2, 2}, acc::zeros());
      auto optimizer = model.optimizer(acc::AdamW{});
      if (from_file) {
        model.load_weights(file);
      } else {
        runtime.load(checkpoint, model, optimizer);
      }
      right += bits(unit, mean)[0] == 0x3f80 && bits(unit, mean)[3] == 0x4000;
    });
  }
  CHECK(right == 6);
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model();
  auto& unit = model.unit("net", "Net");
  unit.parameter("mean", {1}, acc::zeros());
  unit.buffer("mean", {1}, acc::zeros());
  CHECK_THROWS_WITH((void)unit.forward(), doctest::Contains("are named net.mean"));
}
