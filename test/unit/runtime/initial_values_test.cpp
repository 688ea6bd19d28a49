// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/weights.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Initial values of parameters and buffers: from initialisers, files, rank 0.
namespace {

using acc::settings::MixedPrecision;
using acc::settings::RuntimeSettings;
using acc::settings::ShardingSettings;
using acc::settings::Strategy;
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

TEST_CASE("weights that a model ties must be equal in a file") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "weights.safetensors").string();
  constexpr int kNumel = 41;
  for (const bool equal : {true, false}) {
    CAPTURE(equal);
    with_unit({.world_size = 1}, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int) {
      unit.parameter("a", {kNumel}, own_of(0));
      unit.parameter("b", {kNumel}, own_of(equal ? 0 : 1));
      model.export_weights(path);
    });
    Job job = job_of({"full_shard", Strategy::full_shard}, 2);
    job.sharding.cpu_ram_efficient_loading = false;
    std::atomic<int> refused = 0;
    acc::test::run_ranks(job, [&](const RuntimeSettings& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model(7);
      acc::Unit& unit = model.unit("net", "Net");
      unit.tie("net.b", unit.parameter("a", {kNumel}, acc::zeros()));
      try {
        model.load_weights(path);
      } catch (const acc::Error& error) {
        refused += acc::test::contains(error.what(), "net.b differ, but this model ties them");
      }
    });
    CHECK(refused == (equal ? 0 : 2));
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

namespace {

using acc::DType;

/// Bytes that differ between dtypes and that no conversion through another dtype keeps.
std::vector<std::byte> pattern_of(DType dtype, std::size_t numel) {
  std::vector<std::byte> bytes(numel * nbytes_of(dtype));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = dtype == DType::boolean ? static_cast<std::byte>(i % 2)
                                       : static_cast<std::byte>(37 * i + 11);
  }
  return bytes;
}

constexpr DType kStoredDtypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64,
                                   DType::uint8,   DType::boolean,  DType::int8,    DType::int16,
                                   DType::uint16,  DType::int32,    DType::uint32,  DType::int64,
                                   DType::uint64};
constexpr acc::Shape::value_type kSizes[] = {3, 1, 0};  // of the buffers of each dtype

/// Buffers of every dtype and of several sizes, each with a second name.
struct Buffers {
  explicit Buffers(acc::Unit& unit) {
    unit.parameter("weight", {9}, acc::ones());
    for (const DType dtype : kStoredDtypes) {
      for (const std::int64_t size : kSizes) {
        const std::string name = std::string(to_string(dtype)) + "_" + std::to_string(size);
        all.emplace_back(dtype, unit.buffer(name, size == 1 ? acc::Shape{} : acc::Shape{size, 2},
                                            acc::zeros(), dtype));
        unit.tie("other." + name, all.back().second);
        numels.push_back(size == 1 ? 1 : static_cast<std::size_t>(2 * size));
      }
    }
  }
  void write(acc::Unit& unit) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto bytes = pattern_of(all[i].first, numels[i]);
      if (!bytes.empty()) {
        std::memcpy(unit.data(all[i].second), bytes.data(), bytes.size());
      }
    }
  }
  /// Number of buffers that do not have the pattern.
  int strangers(acc::Unit& unit) const {
    int count = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto bytes = pattern_of(all[i].first, numels[i]);
      const bool differs =
          !bytes.empty() && std::memcmp(unit.data(all[i].second), bytes.data(), bytes.size()) != 0;
      count += differs ? 1 : 0;
    }
    return count;
  }

  std::vector<std::pair<DType, acc::Buffer>> all;
  std::vector<std::size_t> numels;
};

/// The first number in memory, of the dtypes that the test below declares.
double number_in(const void* memory, DType dtype) {
  const auto as = [memory](auto value) {
    std::memcpy(&value, memory, sizeof(value));
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::float64: return as(double{});
    case DType::int64: return as(std::int64_t{});
    case DType::int32: return as(std::int32_t{});
    case DType::boolean: return as(std::uint8_t{});
    case DType::bfloat16: return as(std::uint16_t{}) == 0x4040 ? 3.0 : -1.0;
    default: return as(float{});
  }
}

}  // namespace

TEST_CASE("buffers keep dtype and bits in memory, in files and in checkpoints of each form") {
  using acc::settings::StateDictType;
  const TemporaryFolder folder;
  for (const auto form : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
    CAPTURE(to_string(form));
    Job job = job_of({"full_shard", Strategy::full_shard}, 2);
    job.sharding.state_dict_type = form;
    job.sharding.mixed_precision = MixedPrecision::bf16;
    const auto path = [&](const std::string& name) {
      return (folder.path() / (std::string(to_string(form)) + name)).string();
    };
    const std::vector<std::string> files = {path(".safetensors"), path(".bin"), path("_folder")};
    std::atomic<int> wrong = 0;
    std::atomic<int> visited = 0;
    with_unit(job, [&](acc::Runtime& runtime, acc::Model& model, acc::Unit& unit, int) {
      const Buffers buffers(unit);
      auto optimizer = model.optimizer(acc::AdamW{});
      buffers.write(unit);
      for (const std::string& file : files) {
        model.export_weights(file);
      }
      runtime.save(path("_run"), model, optimizer);
      model.state_dict({.rank0_only = false}, [&](const acc::FullTensor& tensor) {
        const std::string dtype(to_string(tensor.dtype));
        visited += tensor.name.starts_with("net." + dtype + "_") ||
                           tensor.name.starts_with("other." + dtype + "_")
                       ? 1
                       : 0;
      });
    });
    CHECK(visited == 2 * 2 * std::ssize(kStoredDtypes) * std::ssize(kSizes));
    for (const std::string& from : {files[0], files[1], files[2], path("_run")}) {
      CAPTURE(from);
      with_unit(job, [&](acc::Runtime& runtime, acc::Model& model, acc::Unit& unit, int) {
        const Buffers buffers(unit);
        auto optimizer = model.optimizer(acc::AdamW{});
        if (from == path("_run")) {
          runtime.load(from, model, optimizer);
        } else {
          model.load_weights(from);
        }
        wrong += buffers.strangers(unit);
      });
      const auto stored = acc::checkpoint::open_checkpoint(from, acc::checkpoint::Want::weights, 0);
      for (const DType dtype : kStoredDtypes) {
        for (const std::string_view place : {"net.", "other."}) {
          const std::string name = std::string(place) + std::string(to_string(dtype)) + "_3";
          CHECK(torch_name(stored.catalog.at(name, "param", from).dtype) == to_string(dtype));
        }
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a buffer loads from another dtype if that holds its values") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "weights.safetensors").string();
  struct Row {
    DType stored;
    double value;  ///< that the file holds
    DType declared;
    bool holds;
  };
  const Row rows[] = {
      {DType::float32, 7, DType::int64, true},  // as earlier versions stored it
      {DType::float32, 16777216, DType::int32, true}, {DType::float32, 1, DType::boolean, true},
      {DType::float32, 2, DType::boolean, false},     {DType::float32, 0.5, DType::int64, false},
      {DType::float32, -1, DType::uint8, false},      {DType::float32, 0.1F, DType::float64, true},
      {DType::float64, 0.1, DType::float32, true},  // rounded
      {DType::float32, 3, DType::bfloat16, true},     {DType::float32, 3, DType::complex64, true},
  };
  for (const Row& row : rows) {
    CAPTURE(to_string(row.stored));
    CAPTURE(row.value);
    CAPTURE(to_string(row.declared));
    with_unit({.world_size = 1}, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int) {
      unit.parameter("weight", {3}, acc::ones());
      unit.buffer("seen", {}, acc::constant(static_cast<float>(row.value)), row.stored);
      model.export_weights(file);
    });
    with_unit({.world_size = 1}, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int) {
      unit.parameter("weight", {3}, acc::zeros());
      const auto seen = unit.buffer("seen", {}, acc::zeros(), row.declared);
      if (!row.holds) {
        CHECK_THROWS_WITH_AS(model.load_weights(file), doctest::Contains("tensor net.seen"),
                             acc::Error);
        return;
      }
      model.load_weights(file);
      CHECK(number_in(unit.data(seen), row.declared) == doctest::Approx(row.value).epsilon(1e-6));
    });
  }
  with_unit({.world_size = 1}, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int) {
    unit.parameter("weight", {3}, acc::ones());
    unit.buffer("seen", {2}, acc::constant(0.5F), DType::int16);
    CHECK_THROWS_WITH(
        (void)model.export_weights(file),
        doctest::Contains("buffer net.seen of int16: its initialiser gives element 0"));
  });
}

TEST_CASE(
    "Model::share: values that the program holds become rank 0's, but not in ignored modules") {
  for (const bool syncs : {true, false}) {
    Job job = job_of({"full_shard", Strategy::full_shard}, 3);
    job.sharding.sync_module_states = syncs;
    job.sharding.ignored_modules = "own";
    std::atomic<int> right = 0;
    with_unit(job, [&](acc::Runtime&, acc::Model& model, acc::Unit& unit, int rank) {
      unit.parameter("weight", {9}, acc::ones());
      std::vector<std::int64_t> values(1000, rank);
      model.share("net.table", values.data(), values.size() * sizeof(std::int64_t));
      right += values.front() == (syncs ? 0 : rank) && values.back() == values.front() ? 1 : 0;
      std::int64_t own = rank;
      model.share("own.table", &own, sizeof(own));
      right += own == rank ? 1 : 0;
      model.share("net.empty", nullptr, 0);
    });
    CHECK(right == 6);
  }
}
