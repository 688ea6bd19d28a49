// SPDX-License-Identifier: Apache-2.0
#include "acc/base/optimizer_rules.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/errors.hpp"
#include "support/module_net.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

// Models whose optimizer state or weights lie in files (offload to NVMe).
namespace {

namespace fs = std::filesystem;
using acc::settings::MixedPrecision;
using acc::settings::OffloadDevice;
using acc::settings::StateDictType;
using acc::settings::Strategy;
using acc::test::Job;
using acc::test::job_of;
using acc::test::ModuleNet;
using acc::test::TemporaryFolder;
using acc::test::UnitSpec;

/// Sizes that no number of ranks divides, of several tiles and of less than one.
std::vector<UnitSpec> net() {
  return {{"", "Net", -1, {{.name = "embedding", .numel = 20'013, .columns = 3}}},
          {"layer",
           "Layer",
           0,
           {{.name = "weight", .numel = 108'000, .columns = 60},
            {.name = "bias", .numel = 5, .options = {.weight_decay = false}}}},
          {"tail", "Tail", 0, {{.name = "head", .numel = 21}}}};
}

void put_on_disk(Job& job, const fs::path& folder, bool optimizer, bool param) {
  acc::settings::ShardingSettings& sharding = job.sharding;
  sharding.nvme = {.block_size = 4096, .queue_depth = 2};  // buffers of 256 KiB
  if (optimizer) {
    sharding.offload_optimizer = OffloadDevice::nvme;
    sharding.offload_optimizer_nvme_path = folder.string();
  }
  if (param) {
    sharding.offload_param = OffloadDevice::nvme;
    sharding.offload_param_nvme_path = folder.string();
  }
}

acc::NamedRule rule_of(const acc::OptimizerRule& rule) {
  acc::NamedRule settings{std::string(rule.name), {{"lr", 0.05}, {"weight_decay", 0.1}}};
  for (const acc::RuleCoefficient& each : rule.coefficients) {
    // A centered RMSprop may take the root of a rounding error below zero: a NaN of any sign.
    if (each.fallback == 0.0 && each.name != "weight_decay" && each.name != "centered" &&
        each.name != "states_8bit") {
      settings.coefficients[std::string(each.name)] = each.is_switch ? 1.0 : 0.5;
    }
    if (each.name == acc::kLargestSide) {  // without squares of the 1800 rows
      settings.coefficients[std::string(each.name)] = 100.0;
    }
  }
  return settings;
}

/// Trains from `from` (empty: the beginning) and saves in `to`. The first step of fp16 overflows.
void train(const Job& job, const acc::NamedRule& rule, const std::string& from,
           const std::string& to, int steps) {
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(42);
    ModuleNet net(model, ::net());
    auto optimizer = model.optimizer(
        rule, {{.name = "layer", .parameters = {"layer.*"}, .lr = 0.02, .weight_decay = 0.2}});
    optimizer.set_clip_norm(1.0);
    if (!from.empty()) {
      runtime.load(from, model, optimizer);
    }
    for (int step = 0; step < steps; ++step) {
      const bool overflows = job.sharding.mixed_precision == MixedPrecision::fp16 && step == 0;
      int number = 0;
      do {
        net.micro_step(
            overflows ? acc::test::GradientRule([](const std::string&, int, float) {
              return std::numeric_limits<float>::infinity();
            })
                      : acc::test::usual_gradient(settings.identity.rank, 2 * step + number++));
      } while (!runtime.last_micro_step(model));
      CHECK(optimizer.step().skipped == overflows);
    }
    runtime.save(to, model, optimizer);
    runtime.barrier();
  });
}

/// The files of a checkpoint by name, except those that contain the number of the save.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& each : fs::recursive_directory_iterator(folder)) {
    const std::string name = each.path().filename();
    if (each.is_regular_file() && name != ".metadata" && name != "acc_checkpoint.json") {
      std::ifstream in(each.path(), std::ios::binary);
      files[fs::relative(each.path(), folder).string()] =
          std::string(std::istreambuf_iterator<char>(in), {});
    }
  }
  return files;
}

/// The names of files that differ.
std::string differing(const fs::path& a, const fs::path& b) {
  std::string names;
  const auto first = files_in(a);
  auto second = files_in(b);
  for (const auto& [name, text] : first) {
    names += second[name] == text ? "" : name + " ";
  }
  return first.size() == second.size() && first.size() > 1 ? names : "other files: " + names;
}

}  // namespace

TEST_CASE("training with state or weights in files gives the checkpoints of training in memory") {
  const TemporaryFolder folder;
  const TemporaryFolder disk;
  struct Layout {
    Strategy strategy;
    int ranks, resumed_on;
    MixedPrecision precision;
    int machines = 1;
  };
  StateDictType type = StateDictType::full;  // in turn
  for (const Layout& each : {Layout{Strategy::no_shard, 1, 2, MixedPrecision::no},
                             Layout{Strategy::no_shard, 2, 1, MixedPrecision::bf16},
                             Layout{Strategy::shard_optimizer, 2, 3, MixedPrecision::bf16},
                             Layout{Strategy::shard_grad_op, 3, 2, MixedPrecision::fp16},
                             Layout{Strategy::full_shard, 2, 3, MixedPrecision::no},
                             Layout{Strategy::full_shard, 3, 1, MixedPrecision::bf16, 3},
                             Layout{Strategy::hybrid_shard, 4, 2, MixedPrecision::bf16, 2}}) {
    type = type == StateDictType::full ? StateDictType::sharded : StateDictType::full;
    for (const bool param : {false, true}) {
      if (param &&
          (each.strategy == Strategy::no_shard || each.strategy == Strategy::shard_optimizer)) {
        continue;
      }
      CAPTURE(to_string(each.strategy));
      CAPTURE(to_string(type));
      CAPTURE(param);
      const auto job_with = [&](int ranks, int machines, bool on_disk) {
        Job job = job_of(each.strategy, ranks, machines);
        job.sharding.mixed_precision = each.precision;
        job.sharding.gradient_accumulation_steps = 2;
        job.sharding.state_dict_type = type;
        if (on_disk) {
          put_on_disk(job, disk.path(), true, param);
        }
        return job;
      };
      const auto resumed = [&](bool on_disk) {
        Job job = job_with(each.resumed_on, 1, on_disk);
        if (each.strategy == Strategy::hybrid_shard) {
          job.sharding.strategy = Strategy::full_shard;
        }
        return job;
      };
      const auto path = [&](const char* name) { return (folder.path() / name).string(); };
      const acc::NamedRule rule = rule_of(*acc::find_optimizer_rule("adamw"));
      train(job_with(each.ranks, each.machines, false), rule, "", path("memory"), 2);
      train(job_with(each.ranks, each.machines, true), rule, "", path("disk"), 2);
      CHECK(differing(path("memory"), path("disk")) == "");
      train(resumed(false), rule, path("memory"), path("memory 2"), 2);
      train(resumed(true), rule, path("disk"), path("disk 2"), 2);
      CHECK(differing(path("memory 2"), path("disk 2")) == "");
      CHECK(acc::test::names_in(disk.path()).empty());
    }
  }
}

TEST_CASE("every rule updates state in files as in memory") {
  const TemporaryFolder folder;
  const TemporaryFolder disk;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  std::vector<acc::NamedRule> rules;
  for (const acc::OptimizerRule& rule : acc::kOptimizerRules) {
    rules.push_back(rule_of(rule));
    if (rule.coefficient(acc::kStates8Bit) != nullptr) {
      rules.push_back(rule_of(rule));
      rules.back().coefficients["states_8bit"] = 1.0;
    }
  }
  for (const acc::NamedRule& rule : rules) {
    for (const auto precision : {MixedPrecision::no, MixedPrecision::bf16}) {
      CAPTURE(rule.name);
      CAPTURE(rule.coefficients.contains("states_8bit"));
      CAPTURE(to_string(precision));
      Job job = job_of(Strategy::full_shard, 2);
      job.sharding.mixed_precision = precision;
      train(job, rule, "", path("memory"), 2);
      put_on_disk(job, disk.path(), true, precision == MixedPrecision::bf16);
      train(job, rule, "", path("disk"), 2);
      CHECK(differing(path("memory"), path("disk")) == "");
    }
  }
}

TEST_CASE("weights in files leave an optimizer in memory as it is, with 16-bit weights too") {
  const TemporaryFolder folder;
  const TemporaryFolder disk;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  for (const auto& [precision, copies] :
       {std::pair{MixedPrecision::no, false}, std::pair{MixedPrecision::bf16, false},
        std::pair{MixedPrecision::bf16, true}}) {
    Job job = job_of(Strategy::full_shard, 3);
    job.sharding.mixed_precision = precision;
    // Gathers that copy wait for the file at once, and the smallest parameters stay in memory.
    job.copy_gathers = copies;
    job.sharding.param_persistence_threshold = copies ? 100 : 0;
    const acc::NamedRule rule = rule_of(*acc::find_optimizer_rule("adamw"));
    train(job, rule, "", path("memory"), 3);
    put_on_disk(job, disk.path(), false, true);
    train(job, rule, "", path("disk"), 3);
    CHECK(differing(path("memory"), path("disk")) == "");
  }
}

TEST_CASE("the memory report counts what is in files apart") {
  const TemporaryFolder states;
  const TemporaryFolder weights;
  const auto report = [&](bool optimizer, bool param) {
    Job job = job_of(Strategy::full_shard, 1);
    job.sharding.mixed_precision = MixedPrecision::bf16;
    put_on_disk(job, states.path(), optimizer, param);
    job.sharding.offload_param_nvme_path = weights.path().string();
    job.sharding.nvme.buffer_count = 5;
    job.sharding.nvme.block_size = 65536;
    job.sharding.nvme.queue_depth = 4;
    acc::MemoryReport found;
    std::size_t in_states = 0;
    std::size_t in_weights = 0;
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model();
      ModuleNet net(model, ::net());
      const auto adamw = model.optimizer(acc::AdamW{});
      found = model.memory();
      in_states = acc::test::nameless_files(states.path()).size();
      in_weights = acc::test::nameless_files(weights.path()).size();
    });
    CHECK(in_states == (optimizer ? 1 : 0));
    CHECK(in_weights == (param ? 1 : 0));
    CHECK(found.nvme_buffer_bytes == (optimizer || param ? 5 * 4 * 65536 : 0));
    return found;
  };
  const acc::MemoryReport none = report(false, false);
  const acc::MemoryReport states_out = report(true, false);
  const acc::MemoryReport both = report(true, true);
  const std::int64_t numel = none.parameter_bytes / 4;  // with gaps
  CHECK(numel >= 128'039);
  CHECK(none.optimizer_bytes == 8 * numel);
  CHECK(none.nvme_bytes == 0);
  const std::int64_t most =
      std::int64_t{3} * 4 * 4096;  // the last pages of three arrays of each unit
  CHECK(states_out.parameter_bytes + states_out.optimizer_bytes == 0);
  CHECK(std::abs(states_out.nvme_bytes - 12 * numel) <= most);
  CHECK(std::abs(both.nvme_bytes - 18 * numel) <= 2 * most);  // weights and gradients too
  CHECK(states_out.gathered_bytes == none.gathered_bytes);
  CHECK(states_out.gradient_bytes == none.gradient_bytes);
  CHECK(both.gradient_bytes == 0);
}

TEST_CASE("offload to nvme refuses what it cannot serve, and says why") {
  const TemporaryFolder disk;
  const auto run = [&](bool optimizer, bool param, const auto& ask, Strategy strategy,
                       const auto& body) {
    Job job = job_of(strategy, 1);
    job.sharding.mixed_precision = MixedPrecision::bf16;
    put_on_disk(job, disk.path(), optimizer, param);
    ask(job);
    return acc::test::error_of([&] {
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        body(runtime);
      });
      return 0;
    });
  };
  const auto nothing = [](Job&) {};
  const auto train = [](acc::Runtime& runtime) {
    auto model = runtime.model();
    ModuleNet net(model, ::net());
    auto optimizer = model.optimizer(acc::Sgd{.lr = 0.1, .momentum = 0.9});
  };
  CHECK(run(
            true, false, [](Job& job) { job.device = acc::settings::Device::cuda; },
            Strategy::full_shard, train) ==
        "not_supported: not in this version of libacc_runtime: offload of the optimizer to nvme on "
        "a GPU");
  CHECK(run(false, true, nothing, Strategy::shard_optimizer, train)
            .find("offload of parameters needs a strategy that shards them") != std::string::npos);
  CHECK(run(
            true, false, [](Job& job) { job.sharding.offload_optimizer_nvme_path = "/nowhere"; },
            Strategy::full_shard, train)
            .find("cannot make a file in /nowhere (offload_optimizer_nvme_path)") !=
        std::string::npos);
  const std::string in_file =
      "not_supported: the master weights of unit 'root' are in a file (offload to nvme), where the "
      "program cannot use them: use an optimizer of the runtime, or offload to the CPU";
  CHECK(run(true, false, nothing, Strategy::full_shard, [](acc::Runtime& runtime) {
          auto model = runtime.model();
          ModuleNet net(model, ::net());
          static_cast<void>(model.shards());
        }) == in_file);
  CHECK(run(true, false, nothing, Strategy::full_shard, [](acc::Runtime& runtime) {
          auto model = runtime.model();
          ModuleNet net(model, ::net());
          static_cast<void>(model.optimizer(acc::ProgramRule{.update = [](const auto&) {}}));
        }) == in_file);
  CHECK(run(
            true, true,
            [](Job& job) {
              job.sharding.mixed_precision = MixedPrecision::no;
              job.sharding.param_persistence_threshold = 1'000'000;  // all weights stay in memory
            },
            Strategy::full_shard,
            [](acc::Runtime& runtime) {
              auto model = runtime.model();
              ModuleNet net(model, ::net());
              static_cast<void>(model.optimizer(acc::ProgramRule{.update = [](const auto&) {}}));
            })
            .starts_with("not_supported: the gradients of unit 'root' are in a file"));
  CHECK(run(true, false, nothing, Strategy::full_shard, [](acc::Runtime& runtime) {
          static_cast<void>(runtime.model(0, {.by_rows = true}));
        }).find("as rows") != std::string::npos);
}
