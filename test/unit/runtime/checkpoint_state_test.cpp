// SPDX-License-Identifier: Apache-2.0
#include "acc/base/flight_record.hpp"
#include "acc/base/optimizer_rules.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "acc/runtime/checkpoint_series.hpp"
#include "support/run_ranks.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

// Checkpoints saved in any form and layout, or by other programs, load into any layout.
namespace {

namespace fs = std::filesystem;
using acc::settings::MixedPrecision;
using acc::settings::StateDictType;
using acc::settings::Strategy;
using acc::test::Job;
using acc::test::names_in;
using acc::test::TemporaryFolder;

/// Everything that a checkpoint holds of tensors, as float, by name and kind.
using Content = std::map<std::pair<std::string, std::string>, std::vector<float>>;

Content content_of(const fs::path& path, int index = 0) {
  const auto stored =
      acc::checkpoint::open_checkpoint(path, acc::checkpoint::Want::everything, index);
  acc::checkpoint::TensorReader reader(stored.catalog);
  Content content;
  for (const auto& tensor : stored.catalog.tensors) {
    if (tensor.kind == "step" || !is_real(tensor.dtype)) {
      continue;  // SHARDED saves the step of every parameter, FULL only of those with moments
    }
    const std::int64_t numel = acc::checkpoint::numel_of(tensor.shape);
    auto& values = content[{tensor.name, tensor.kind}];
    values.resize(static_cast<std::size_t>(numel));
    reader.read(tensor, 0, numel, acc::checkpoint::Dtype::f32, values.data());
  }
  return content;
}

void check_same(const Content& found, const Content& expected) {
  for (const auto& each : expected) {
    const auto& key = each.first;
    const auto& values = each.second;
    CAPTURE(key.first);
    CAPTURE(key.second);
    REQUIRE(found.contains(key));
    CHECK(found.at(key) == values);
  }
  CHECK(found.size() == expected.size());
}

/// Sizes that no number of ranks divides; tied, frozen and ignored parameters, parameters without
/// weight decay, a scalar, a buffer.
struct Net {
  explicit Net(acc::Model& model)
      : root(model.root("", "Net")), block(model.unit("block", "Block")) {
    embedding = root.parameter("embedding", {13, 3}, acc::normal(0.5F));
    root.tie("head.weight", embedding);
    root.parameter("scale", {}, acc::normal(1.0F), {.trainable = false});
    gain = root.parameter("gain", {11}, acc::normal(0.3F));  // beside the matrix
    buffer = root.buffer("mean", {3, 2}, acc::normal(1.0F));
    weight = block.parameter("weight", {7, 2, 5}, acc::normal(0.3F));
    bias = block.parameter("own.bias", {17}, acc::normal(0.3F), {.weight_decay = false});
  }

  void step(acc::Optimizer& optimizer, int step) {
    root.forward().end();
    block.forward().end();
    {
      auto use = block.backward();
      push(use, weight, 70, step);
      push(use, bias, 17, step);
    }
    auto use = root.backward();
    push(use, embedding, 39, step);
    push(use, gain, 11, step);
    use.end();
    optimizer.step();
  }

  static void push(acc::BackwardUse& use, acc::Parameter parameter, int numel, int step) {
    float* const to = use.grad_to_add(parameter);
    for (int i = 0; i < numel; ++i) {
      to[i] += std::sin(static_cast<float>(i + 5 * step));
    }
  }

  acc::Unit& root;
  acc::Unit& block;
  acc::Parameter embedding, gain, weight, bias;
  acc::Buffer buffer;
};

struct Form {
  const char* name;
  Job job;
};

Job job_of(int ranks, Strategy strategy, StateDictType type, int shard_size = 0) {
  Job job = acc::test::job_of(strategy, ranks);
  job.sharding.state_dict_type = type;
  job.sharding.shard_size = shard_size;
  job.sharding.ignored_modules = "own";
  return job;
}

std::vector<Form> forms() {
  std::vector<Form> all;
  for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
    all.push_back({"alone", job_of(1, Strategy::no_shard, type)});
    all.push_back({"no_shard on 2", job_of(2, Strategy::no_shard, type)});
    all.push_back({"full_shard on 3", job_of(3, Strategy::full_shard, type)});
    all.push_back({"hybrid_shard on 2 x 2", job_of(4, Strategy::hybrid_shard, type, 2)});
  }
  all.push_back({"zero1 on 2", job_of(2, Strategy::shard_optimizer, StateDictType::sharded)});
  return all;
}

/// Runs `body(runtime, model, net, optimizer)` on every rank.
template <typename Body>
void on_ranks(const Job& job, std::uint64_t seed, const Body& body,
              const acc::ModelOptions& options = {}) {
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(seed, options);
    Net net(model);
    auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05, .weight_decay = 0.1});
    body(runtime, model, net, optimizer);
    runtime.barrier();
  });
}

void save_trained(const Job& job, const std::string& path, const acc::ModelOptions& options = {},
                  int steps = 2) {
  on_ranks(
      job, 1,
      [&](auto& runtime, auto& model, auto& net, auto& optimizer) {
        auto* const buffer = static_cast<float*>(net.root.data(net.buffer));
        if (model.buffer_dtype() == acc::DType::float32) {
          buffer[4] = 42.0F;  // a program may write buffers directly
        }
        for (int step = 1; step <= steps; ++step) {
          net.step(optimizer, step);
        }
        runtime.save(path, model, optimizer);
      },
      options);
}

void load_and_save(const Job& job, const std::string& from, const std::string& to) {
  on_ranks(job, 2, [&](auto& runtime, auto& model, auto&, auto& optimizer) {
    runtime.load(from, model, optimizer);
    CHECK(optimizer.steps() == 2);
    runtime.save(to, model, optimizer);
  });
}

}  // namespace

TEST_CASE("checkpoints of any form and layout load bitwise equal into any other") {
  const TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  const std::vector<Form> all = forms();
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(all[i].name);
    CAPTURE(to_string(all[i].job.sharding.state_dict_type));
    const std::string from = path(fmt::format("from_{}", i));
    save_trained(all[i].job, from);
    const Content expected = content_of(from);
    CHECK(expected.contains({"head.weight", "param"}));
    CHECK(expected.contains({"mean", "param"}));
    CHECK(expected.at({"mean", "param"})[4] == 42.0F);
    CHECK(expected.at({"embedding", "exp_avg"})[0] != 0.0F);
    CHECK(!expected.contains({"scale", "exp_avg"}));
    // Each layout once, with alternating forms.
    for (std::size_t k = 0; k < 5; ++k) {
      const Form& reader = all[(i + 3 * k + 1) % all.size()];
      CAPTURE(reader.name);
      CAPTURE(to_string(reader.job.sharding.state_dict_type));
      load_and_save(reader.job, from, path("to"));
      check_same(content_of(path("to")), expected);
    }
  }
}

TEST_CASE("every optimizer trains the same sharded, offloaded and resumed on other ranks") {
  using acc::RuleScope;
  using acc::settings::OffloadDevice;
  const TemporaryFolder folder;
  for (const acc::OptimizerRule& rule : acc::kOptimizerRules) {
    acc::NamedRule settings{std::string(rule.name), {{"lr", 0.05}, {"weight_decay", 0.1}}};
    for (const acc::RuleCoefficient& each : rule.coefficients) {
      if (each.fallback == 0.0 && each.name != "weight_decay") {
        settings.coefficients[std::string(each.name)] = each.is_switch ? 1.0 : 0.5;
      }
    }
    const auto train = [&](const Job& job, const std::string& from, const std::string& to,
                           int first, int last) {
      acc::test::run_ranks(job, [&](const auto& job_settings, auto store) {
        auto runtime = acc::Runtime::from_settings(job_settings, std::move(store));
        auto model = runtime.model(1);
        Net net(model);
        auto optimizer = model.optimizer(settings);
        if (!from.empty()) {
          runtime.load(from, model, optimizer);
        }
        for (int step = first; step <= last; ++step) {
          net.step(optimizer, step);
        }
        runtime.save(to, model, optimizer);
        runtime.barrier();
      });
      return content_of(to);
    };
    CAPTURE(std::string(rule.name));
    const auto path = [&](const char* name) { return (folder.path() / name).string(); };
    const auto whole =
        train(job_of(1, Strategy::no_shard, StateDictType::sharded), "", path("whole"), 1, 6);
    for (const acc::RuleState& state : rule.states) {
      const std::string key(state.key);
      const auto has = [&](std::size_t dimensions) {
        const auto of = rule.is_matrix(dimensions) ? RuleScope::matrices : RuleScope::others;
        return std::ranges::any_of(rule.states, [&](const acc::RuleState& each) {
          return each.key == state.key && (each.of == RuleScope::all || each.of == of);
        });
      };
      CHECK(whole.contains({"embedding", key}) == has(2));
      CHECK(whole.contains({"block.weight", key}) == has(3));
      CHECK(whole.contains({"gain", key}) == has(1));
    }
    for (const auto strategy : {Strategy::full_shard, Strategy::shard_optimizer,
                                Strategy::shard_grad_op, Strategy::no_shard}) {
      for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
        CAPTURE(to_string(strategy));
        Job job = job_of(2, strategy, type);
        if (strategy != Strategy::no_shard) {
          job.sharding.offload_optimizer = OffloadDevice::cpu;
        }
        train(job, "", path("half"), 1, 3);
        const auto resumed = train(job_of(4, strategy, type), path("half"), path("end"), 4, 6);
        CHECK(resumed.size() == whole.size());
        for (const auto& each : whole) {
          const auto& key = each.first;
          const auto& values = each.second;
          CAPTURE(key.first);
          CAPTURE(key.second);
          REQUIRE(resumed.contains(key));
          for (std::size_t i = 0; i < values.size(); ++i) {
            CHECK(std::abs(resumed.at(key)[i] - values[i]) <= 1e-6F);
          }
        }
      }
    }
  }
}

namespace {

/// Parameters of several blocks of 256, which shards divide anywhere, and one with float32 states.
struct BlockNet {
  explicit BlockNet(acc::Model& model)
      : root(model.root("", "Net")), block(model.unit("block", "Block")) {
    parameters = {{&root, root.parameter("embedding", {100, 13}, acc::normal(0.5F)), 1300},
                  {&block, block.parameter("bias", {37}, acc::normal(0.3F)), 37},
                  {&block, block.parameter("weight", {7, 101}, acc::normal(0.3F)), 707},
                  {&block, block.parameter("scale", {300}, acc::normal(0.3F)), 300}};
  }

  void step(acc::Optimizer& optimizer, int step) {
    root.forward().end();
    block.forward().end();
    for (acc::Unit* const unit : {&block, &root}) {
      auto use = unit->backward();
      for (const auto& [owner, parameter, numel] : parameters) {
        float* const to = owner == unit ? use.grad_to_add(parameter) : nullptr;
        for (int i = 0; to != nullptr && i < numel; ++i) {
          const auto at = static_cast<float>(i + 5 * step);
          to[i] += i < 256 ? 0.0F : std::sin(at) * std::exp(4.0F * std::cos(3.0F * at));
        }
      }
    }
    optimizer.step();
  }

  struct Own {
    acc::Unit* unit;
    acc::Parameter parameter;
    int numel;
  };
  acc::Unit& root;
  acc::Unit& block;
  std::vector<Own> parameters;
};

}  // namespace

TEST_CASE("states in 8 bits do not depend on the sharding, and are resumed bit for bit") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  int states = 0;
  acc::ModelOptions options;
  const auto train = [&](const Job& job, const acc::NamedRule& rule, const std::string& from,
                         const std::string& to, int first, int last) {
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model(1, options);
      BlockNet net(model);
      auto optimizer = model.optimizer(rule);
      if (!from.empty()) {
        runtime.load(from, model, optimizer);
      }
      for (int step = first; step <= last; ++step) {
        net.step(optimizer, step);
      }
      runtime.save(to, model, optimizer);
      runtime.barrier();
      if (job.world_size == 1 && rule.coefficients.at("states_8bit") != 0.0) {
        // Codes, scales of 6, 3 and 2 blocks, float32 values of the bias, and an empty array.
        CHECK(model.memory().optimizer_bytes == states * (1300 + 708 + 300 + 4 * (11 + 37 + 1)));
      }
    });
    return content_of(to);
  };
  for (const auto& each : {std::pair{"adamw", 2}, {"adam", 3}, {"lion", 1}}) {
    const char* const name = each.first;
    states = each.second;
    CAPTURE(std::string(name));
    acc::NamedRule rule{
        name, {{"lr", 0.05}, {"weight_decay", 0.1}, {"states_8bit", 1.0}, {"min_8bit_size", 38.0}}};
    if (rule.name == "adam") {
      rule.coefficients["amsgrad"] = 1.0;
    }
    const auto alone = job_of(1, Strategy::no_shard, StateDictType::sharded);
    const Content whole = train(alone, rule, "", path("whole"), 1, 6);
    for (const auto& row :
         {std::pair{Strategy::full_shard, 0}, std::pair{Strategy::shard_optimizer, 0},
          std::pair{Strategy::shard_grad_op, 0}, std::pair{Strategy::hybrid_shard, 2},
          std::pair{Strategy::no_shard, 0}}) {
      const Strategy strategy = row.first;
      const int shard_size = row.second;
      CAPTURE(to_string(strategy));
      for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
        CAPTURE(to_string(type));
        const int first = strategy == Strategy::hybrid_shard ? 4 : 2;
        train(job_of(first, strategy, type, shard_size), rule, "", path("half"), 1, 3);
        check_same(train(job_of(6 - first, strategy, type, shard_size), rule, path("half"),
                         path("end"), 4, 6),
                   whole);
      }
    }
    // Checkpoints of the same rule with states in float32, and back.
    acc::NamedRule plain = rule;
    plain.coefficients["states_8bit"] = 0.0;
    check_same(train(alone, plain, path("whole"), path("plain"), 1, 0), whole);
    check_same(train(job_of(4, Strategy::full_shard, StateDictType::sharded), rule, path("plain"),
                     path("back"), 1, 0),
               whole);
  }
  // Weights in 16 bits that are rounded at random, with gradients that are sent in 16 bits.
  states = 2;
  options.dtype = acc::DType::bfloat16;
  const acc::NamedRule rule{"adamw", {{"lr", 0.05}, {"states_8bit", 1.0}, {"min_8bit_size", 38.0}}};
  const auto rounding = [](int ranks, Strategy strategy) {
    Job job = job_of(ranks, strategy, StateDictType::sharded);
    job.sharding.stochastic_rounding = true;
    return job;
  };
  const Content whole = train(rounding(2, Strategy::full_shard), rule, "", path("whole"), 1, 6);
  train(rounding(4, Strategy::full_shard), rule, "", path("half"), 1, 3);
  check_same(train(rounding(2, Strategy::shard_grad_op), rule, path("half"), path("end"), 4, 6),
             whole);
  CHECK(
      acc::checkpoint::open_checkpoint(path("end")).catalog.at("embedding", "exp_avg", "").dtype ==
      acc::checkpoint::Dtype::f32);
}

TEST_CASE("master weights and moments are saved in their own dtype") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  struct Case {
    acc::DType loaded;
    MixedPrecision mixed;
    acc::checkpoint::Dtype expected;
  };
  for (const Case& each :
       {Case{acc::DType::bfloat16, MixedPrecision::no, acc::checkpoint::Dtype::bf16},
        Case{acc::DType::bfloat16, MixedPrecision::bf16, acc::checkpoint::Dtype::f32},
        Case{acc::DType::float32, MixedPrecision::bf16, acc::checkpoint::Dtype::f32}}) {
    for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
      CAPTURE(to_string(type));
      Job job = job_of(2, Strategy::full_shard, type);
      job.sharding.mixed_precision = each.mixed;
      save_trained(job, path, {.dtype = each.loaded});
      const auto stored = acc::checkpoint::open_checkpoint(path);
      for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {
        CHECK(stored.catalog.at("block.weight", kind, path).dtype == each.expected);
      }
      // Loaded into float32, and back.
      const Content expected = content_of(path);
      load_and_save(job_of(3, Strategy::full_shard, StateDictType::sharded), path, path + "_f32");
      check_same(content_of(path + "_f32"), expected);
    }
  }
}

TEST_CASE("several models, the program's values and values of each rank") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  const acc::ProgramState program = {{"step", std::int64_t{7}},
                                     {"rate", 0.1},
                                     {"bytes", std::string("\xff\0x", 3)},
                                     {"text", std::string("für")}};
  const auto run = [&](const Job& job, const auto& body) {
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto first = runtime.model(3);
      Net net(first);
      auto second = runtime.model(4);
      second.unit("critic", "Critic").parameter("weight", {5, 5}, acc::normal(1.0F));
      const std::vector<acc::Trained> parts = {{first, first.optimizer(acc::AdamW{})},
                                               {second, second.optimizer(acc::Sgd{})}};
      body(runtime, net, parts);
      runtime.barrier();
    });
  };
  for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
    CAPTURE(to_string(type));
    run(job_of(2, Strategy::full_shard, type), [&](auto& runtime, auto& net, const auto& parts) {
      auto optimizer = parts[0].optimizer;
      net.step(optimizer, 1);
      const acc::ProgramState own = {{"noise", std::int64_t{100 + runtime.rank()}}};
      runtime.save(path, parts, {.program = program, .of_rank = own});
    });
    const Content critic = content_of(path, 1);
    CHECK(critic.at({"critic.weight", "param"}).size() == 25);
    run(job_of(3, Strategy::shard_grad_op, StateDictType::sharded), [&](auto& runtime, auto&,
                                                                        const auto& parts) {
      const acc::SavedState state = runtime.load(path, parts);
      CHECK(state.program == program);
      CHECK(state.of_rank == (runtime.rank() < 2
                                  ? acc::ProgramState{{"noise", std::int64_t{100 + runtime.rank()}}}
                                  : acc::ProgramState{}));
      CHECK(parts[0].optimizer.steps() == 1);
      CHECK(parts[1].optimizer.steps() == 0);
      runtime.save(path + "_again", parts);
    });
    check_same(content_of(path + "_again", 0), content_of(path, 0));
    check_same(content_of(path + "_again", 1), critic);
  }
}

TEST_CASE("ranks meet once in a save: one all_reduce") {
  const TemporaryFolder folder;
  std::vector<std::string> records(4);
  for (const auto type : {StateDictType::sharded, StateDictType::local}) {
    acc::test::run_ranks(
        job_of(4, Strategy::hybrid_shard, type, 2), [&](auto settings, auto store) {
          const std::string record =
              (folder.path() / fmt::format("record_{}", settings.identity.rank)).string();
          settings.flight_record = record;
          auto runtime = acc::Runtime::from_settings(settings, std::move(store));
          auto model = runtime.model(1);
          Net net(model);
          auto optimizer = model.optimizer(acc::AdamW{});
          net.step(optimizer, 1);
          runtime.save((folder.path() / "saved").string(), model, optimizer);
          const auto recorded = acc::flight::read_record(record);
          REQUIRE(recorded);
          std::vector<std::string> kinds;
          for (const auto& call : recorded->last) {
            if (call.place.phase == "save") {
              kinds.push_back(call.kind);
            }
          }
          CHECK(kinds == std::vector<std::string>{"all_reduce"});
          runtime.barrier();
        });
  }
}

TEST_CASE("a failed save fails on every rank and leaves only the older checkpoint") {
  const TemporaryFolder folder;
  const std::string target = (folder.path() / "saved").string();
  std::ofstream(folder.path() / "file") << "x";
  for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
    CAPTURE(to_string(type));
    const Job job = job_of(3, Strategy::full_shard, type);
    save_trained(job, target);
    const Content before = content_of(target);
    struct Case {
      std::string path;
      const char* said;
      rlim_t largest_file;  ///< limits the file size; like a full disk, with another errno
    };
    std::ofstream(folder.path() / "notes.txt") << "x";
    fs::create_directory(folder.path() / "others");
    std::ofstream(folder.path() / "others" / "notes.txt") << "x";
    for (const Case& each :
         {Case{(folder.path() / "file" / "saved").string(), "file", 0},
          Case{(folder.path() / "others").string(), "notes.txt", 0}, Case{target, "saved", 600}}) {
      CAPTURE(each.path);
      const auto names = names_in(folder.path());
      rlimit unlimited{};
      ::getrlimit(RLIMIT_FSIZE, &unlimited);
      auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
      std::mutex mutex;
      int failures = 0;
      on_ranks(job, 1, [&](auto& runtime, auto& model, auto&, auto& optimizer) {
        runtime.barrier();
        if (each.largest_file != 0 && runtime.rank() == 0) {
          const rlimit small{each.largest_file, unlimited.rlim_max};
          ::setrlimit(RLIMIT_FSIZE, &small);
        }
        runtime.barrier();
        try {
          runtime.save(each.path, model, optimizer);
        } catch (const acc::Error& error) {
          const std::lock_guard lock(mutex);
          CHECK(error.code() == acc::Errc::config);
          // Before rank 0 fails: this rank may end, and the launcher then ends rank 0.
          CHECK(names_in(folder.path()) == names);
          CHECK_MESSAGE((std::string(error.what()).find(each.said) != std::string::npos ||
                         std::string(error.what()).find("failed in saving") != std::string::npos),
                        std::string(error.what()));
          ++failures;
        }
        runtime.barrier();
        ::setrlimit(RLIMIT_FSIZE, &unlimited);
      });
      std::signal(SIGXFSZ, handler);
      CHECK(failures == 3);
      CHECK(names_in(folder.path()) == names);
      check_same(content_of(target), before);
    }
  }
}

namespace {

/// A model with the parameters of a checkpoint; its blocks are units.
struct Likeness {
  Likeness(acc::Model& model, const acc::checkpoint::Stored& stored) {
    std::map<std::string, acc::Unit*> units = {{"", &model.root("", "Net")}};
    for (const auto& tensor : stored.catalog.tensors) {
      if (tensor.kind != "param" || tensor.name == "lm_head.weight" || !is_real(tensor.dtype)) {
        continue;
      }
      std::string unit;
      if (tensor.name.starts_with("transformer.h.")) {
        unit = tensor.name.substr(0, tensor.name.find('.', std::string("transformer.h.").size()));
      }
      if (!units.contains(unit)) {
        units[unit] = &model.unit(unit, "Block");
      }
      const auto handle = units[unit]->parameter(
          unit.empty() ? tensor.name : tensor.name.substr(unit.size() + 1), tensor.shape,
          acc::normal(1.0F), {.trainable = stored.catalog.find(tensor.name, "exp_avg") != nullptr});
      if (tensor.name == "transformer.wte.weight") {
        units[unit]->tie("lm_head.weight", handle);
      }
    }
  }
};

}  // namespace

TEST_CASE("checkpoints of torch and DeepSpeed load into every strategy") {
  const fs::path data = fs::path(ACC_TEST_DATA) / "checkpoints";
  const TemporaryFolder folder;
  const std::string to = (folder.path() / "to").string();
  for (const char* name : {"fsdp2_w4", "fsdp1_w4", "ds_zero1_w2", "ds_zero2_w3", "ds_zero3_w3"}) {
    CAPTURE(name);
    const auto stored = acc::checkpoint::open_checkpoint(data / name);
    const Content expected = content_of(data / name);
    for (const Job& job : {job_of(1, Strategy::no_shard, StateDictType::full),
                           job_of(3, Strategy::full_shard, StateDictType::sharded),
                           job_of(2, Strategy::shard_grad_op, StateDictType::local),
                           job_of(4, Strategy::hybrid_shard, StateDictType::sharded, 2)}) {
      CAPTURE(to_string(job.sharding.strategy));
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model(9);
        const Likeness likeness(model, stored);
        auto optimizer = model.optimizer(acc::AdamW{});
        runtime.load((data / name).string(), model, optimizer);
        CHECK(optimizer.steps() == 3);
        runtime.save(to, model, optimizer);
        runtime.barrier();
      });
      const Content found = content_of(to);
      for (const auto& each : expected) {
        const auto& key = each.first;
        const auto& values = each.second;
        if (key.second == "param" || key.second.starts_with("exp_avg")) {
          CAPTURE(key.first);
          CAPTURE(key.second);
          CHECK((found.contains(key) && found.at(key) == values));
        }
      }
    }
  }
}

TEST_CASE("weights are exported in every form and loaded again, and the state dict has them") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  Job job = job_of(3, Strategy::full_shard, StateDictType::sharded);
  job.sharding.save_16bit_model = true;
  job.sharding.mixed_precision = MixedPrecision::bf16;
  on_ranks(job, 1, [&](auto& runtime, auto& model, auto& net, auto& optimizer) {
    net.step(optimizer, 1);
    runtime.save(path("saved"), model, optimizer);
    model.export_weights(path("one.safetensors"));
    model.export_weights(path("one.bin"));
    model.export_weights(path("folder"), {.dtype = {}, .max_shard_nbytes = 300});
    model.export_weights(path("half.safetensors"), {.dtype = acc::DType::float16});
    for (const bool rank0_only : {true, false}) {
      std::map<std::string, std::vector<float>> seen;
      model.state_dict({.rank0_only = rank0_only}, [&](const acc::FullTensor& tensor) {
        const bool is_buffer = tensor.name == "mean";
        CHECK(tensor.dtype == (is_buffer ? acc::DType::bfloat16 : acc::DType::float32));
        std::vector<float>& values = seen[std::string(tensor.name)];
        values.resize(static_cast<std::size_t>(acc::checkpoint::numel_of(tensor.shape)));
        acc::checkpoint::convert(
            tensor.data, is_buffer ? acc::checkpoint::Dtype::bf16 : acc::checkpoint::Dtype::f32,
            values.data(), acc::checkpoint::Dtype::f32, values.size());
      });
      if (rank0_only && runtime.rank() != 0) {
        CHECK(seen.empty());
        continue;
      }
      for (const auto& [key, values] : content_of(path("one.safetensors"))) {
        CHECK(seen.at(key.first) == values);
      }
      CHECK(seen.size() == 7);
    }
  });
  CHECK(fs::exists(folder.path() / "folder" / "model.safetensors.index.json"));
  const Content expected = content_of(path("one.safetensors"));
  CHECK(expected.size() == 7);
  check_same(content_of(path("one.bin")), expected);
  check_same(content_of(path("folder")), expected);
  const auto half = acc::checkpoint::open_checkpoint(path("half.safetensors"));
  CHECK(half.catalog.at("block.weight", "param", "").dtype == acc::checkpoint::Dtype::f16);
  const auto sixteen = acc::checkpoint::open_checkpoint(path("saved") + "/pytorch_model.bin");
  CHECK(sixteen.catalog.at("block.weight", "param", "").dtype == acc::checkpoint::Dtype::bf16);
  for (const char* name : {"one.safetensors", "one.bin", "folder", "saved"}) {
    for (const bool rank_zero_reads : {true, false}) {
      CAPTURE(name);
      Job other = job_of(2, Strategy::shard_grad_op, StateDictType::sharded);
      other.sharding.cpu_ram_efficient_loading = rank_zero_reads;
      on_ranks(other, 2, [&](auto&, auto& model, auto&, auto&) {
        model.load_weights(path(name));
        model.export_weights(path("again.safetensors"));
      });
      check_same(content_of(path("again.safetensors")), expected);
    }
  }
}

TEST_CASE("an exception of state_dict's callback reaches the program") {
  on_ranks(job_of(2, Strategy::full_shard, StateDictType::sharded), 1,
           [&](auto& runtime, auto& model, auto&, auto&) {
             const auto visit = [](const acc::FullTensor&) { throw 7; };
             if (runtime.rank() == 0) {
               CHECK_THROWS_AS(model.state_dict({}, visit), int);
             } else {
               CHECK_THROWS_WITH_AS(model.state_dict({}, visit), doctest::Contains("rank 0 failed"),
                                    acc::Error);
             }
             runtime.barrier();
           });
}

TEST_CASE("our checkpoint loads without torch's .metadata, with another number of ranks") {
  const TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  save_trained(job_of(4, Strategy::hybrid_shard, StateDictType::sharded, 2), path("saved"));
  const Content expected = content_of(path("saved"));
  fs::remove(path("saved/pytorch_model_fsdp_0/.metadata"));
  fs::remove(path("saved/optimizer_0/.metadata"));
  load_and_save(job_of(3, Strategy::full_shard, StateDictType::sharded), path("saved"),
                path("again"));
  check_same(content_of(path("again")), expected);
}

TEST_CASE("a damaged, missing or foreign part is an error with its name on every rank") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  const std::string later = (folder.path() / "later").string();
  struct Case {
    std::function<void()> harm;
    const char* said;
    StateDictType type = StateDictType::sharded;
  };
  // A file of another step has the same size and sound checksums.
  const auto foreign = [&](const std::string& name, StateDictType type) {
    return Case{[&path, &later, name] {
                  REQUIRE(fs::file_size(later + name) == fs::file_size(path + name));
                  fs::copy_file(later + name, path + name, fs::copy_options::overwrite_existing);
                },
                "not what this save wrote", type};
  };
  for (const Case& each :
       {Case{[&] { fs::remove(path + "/optimizer_0/__1_0.distcp"); }, "__1_0.distcp"},
        Case{[&] { fs::resize_file(path + "/pytorch_model_fsdp_0/__0_0.distcp", 100); },
             "__0_0.distcp"},
        Case{[&] { fs::resize_file(path + "/acc_checkpoint.json", 100); }, "acc_checkpoint.json"},
        Case{[&] { fs::remove(path + "/random_states_0.pkl"); }, "random_states_0.pkl"},
        Case{[&] { fs::remove_all(path + "/optimizer_0"); }, "optimizer_0"},
        Case{[&] { fs::remove_all(path); }, "saved"},
        foreign("/optimizer_0/__1_0.distcp", StateDictType::sharded),
        foreign("/random_states_1.pkl", StateDictType::sharded),
        foreign("/pytorch_model_fsdp.bin", StateDictType::full),
        foreign("/optimizer.bin", StateDictType::full),
        foreign("/pytorch_model_fsdp_rank1.bin", StateDictType::local)}) {
    const Job job = job_of(2, Strategy::full_shard, each.type);
    save_trained(job, path);
    save_trained(job, later, {}, 3);
    each.harm();
    std::mutex mutex;
    int failures = 0;
    on_ranks(job, 2, [&](auto& runtime, auto& model, auto&, auto& optimizer) {
      try {
        runtime.load(path, model, optimizer);
      } catch (const acc::Error& error) {
        const std::lock_guard lock(mutex);
        CHECK(error.code() == acc::Errc::config);
        CHECK_MESSAGE((std::string(error.what()).find(each.said) != std::string::npos ||
                       std::string(error.what()).find("failed in loading") != std::string::npos),
                      std::string(error.what()));
        ++failures;
      }
    });
    CHECK(failures == 2);
  }
}

namespace {

/// Flips a bit of a float32 value in a file.
void damage(const fs::path& path, float value) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::size_t at = bytes.find({reinterpret_cast<const char*>(&value), sizeof value});
  REQUIRE(at != std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("weights that are damaged for one rank are an error on all ranks") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  const std::string files = path + "/pytorch_model_fsdp_0/";
  struct Case {
    std::function<void()> harm;
    const char* said;
  };
  for (const Case& each :
       {Case{[&] {
               const Content content = content_of(path);
               damage(files + "__1_0.distcp", content.at({"block.weight", "param"}).back());
             },
             "block.weight"},  // a part that rank 1 wrote
        Case{[&] { damage(files + "__0_0.distcp", 42.0F); }, "mean"}}) {
    for (const bool rank_zero_reads : {true, false}) {
      CAPTURE(each.said);
      CAPTURE(rank_zero_reads);
      Job job = job_of(2, Strategy::full_shard, StateDictType::sharded);
      save_trained(job, path);
      each.harm();
      job.sharding.cpu_ram_efficient_loading = rank_zero_reads;
      std::mutex mutex;
      int failures = 0;
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model(2);
        const Net net(model);
        try {
          model.load_weights(path);
        } catch (const acc::Error& error) {
          const std::lock_guard lock(mutex);
          CHECK_MESSAGE(std::string(error.what()).find(each.said) != std::string::npos,
                        std::string(error.what()));
          ++failures;
        }
      });
      CHECK(failures == 2);
    }
  }
}

TEST_CASE("resuming ignores a 16-bit model file next to a checkpoint of any form") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  std::optional<Content> expected;
  for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
    CAPTURE(to_string(type));
    Job job = job_of(2, Strategy::full_shard, type);
    job.sharding.mixed_precision = MixedPrecision::bf16;
    job.sharding.save_16bit_model = true;
    save_trained(job, path);
    CHECK(fs::exists(path + "/pytorch_model.bin"));
    const Content found = content_of(path);
    if (expected) {
      check_same(found, *expected);
    } else {
      expected = found;
    }
  }
}

TEST_CASE("more local shards than file descriptors are loaded correctly") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  save_trained(job_of(6, Strategy::full_shard, StateDictType::local), path);
  rlimit unlimited{};
  ::getrlimit(RLIMIT_NOFILE, &unlimited);
  const int next = ::dup(0);
  ::close(next);
  const rlimit few{static_cast<rlim_t>(next) + 4, unlimited.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  CHECK_NOTHROW(acc::checkpoint::open_checkpoint(path, acc::checkpoint::Want::weights));
  ::setrlimit(RLIMIT_NOFILE, &unlimited);
}

TEST_CASE(
    "names that could not be loaded again are an error on every rank, and nothing is written") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  for (const char* name : {"\xff", "acc.seed.0"}) {
    on_ranks(job_of(2, Strategy::full_shard, StateDictType::sharded), 1,
             [&](auto& runtime, auto& model, auto&, auto& optimizer) {
               acc::SavedState state;
               if (runtime.rank() == 0) {
                 state.of_rank[name] = std::int64_t{1};
               }
               CHECK_THROWS_WITH_AS(runtime.save(path, model, optimizer, state),
                                    doctest::Contains("value"), acc::Error);
             });
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("stochastic rounding after resuming equals an uninterrupted run") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  Job job = job_of(4, Strategy::hybrid_shard, StateDictType::sharded, 2);
  job.sharding.stochastic_rounding = true;
  const acc::ModelOptions options{.dtype = acc::DType::bfloat16};
  save_trained(job, path("begin"), options);
  for (const std::uint64_t seed : {1, 2}) {  // the first run's seed, and another
    on_ranks(
        job, seed,
        [&](auto& runtime, auto& model, auto& net, auto& optimizer) {
          runtime.load(path("begin"), model, optimizer);
          net.step(optimizer, 3);
          runtime.save(path(seed == 1 ? "same" : "other"), model, optimizer);
        },
        options);
  }
  check_same(content_of(path("other")), content_of(path("same")));
}

TEST_CASE("a series keeps its limit and returns the same newest checkpoint on all ranks") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "series").string();
  on_ranks(job_of(2, Strategy::full_shard, StateDictType::sharded), 1,
           [&](auto& runtime, auto& model, auto& net, auto& optimizer) {
             const acc::CheckpointSeries series(runtime, path, {.total_limit = 2});
             CHECK(!series.newest());
             for (int i = 0; i < 3; ++i) {
               net.step(optimizer, i);
               CHECK(series.save(model, optimizer, {}) == path + fmt::format("/checkpoint_{}", i));
             }
             CHECK(series.newest() == path + "/checkpoint_2");
             runtime.load(*series.newest(), model, optimizer);
             CHECK(optimizer.steps() == 3);
           });
  CHECK(names_in(path) == std::set<std::string>{"checkpoint_1", "checkpoint_2", "latest"});
}

TEST_CASE("two jobs in one series: a job fails when another job has saved to it") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  const Job job = job_of(2, Strategy::full_shard, StateDictType::sharded);
  for (const bool has_saved : {false, true}) {
    CAPTURE(has_saved);
    on_ranks(job, 1, [&](auto& runtime, auto& model, auto&, auto& optimizer) {
      const acc::CheckpointSeries series(runtime, folder.path().string(), {});
      CHECK(series.newest().has_value() == has_saved);
      // A second series object of the same job in the same folder does not count as another job.
      const acc::CheckpointSeries same(runtime, folder.path().string() + "/", {.total_limit = 2});
      if (has_saved) {
        series.save(model, optimizer, {});
        same.save(model, optimizer, {});
        series.save(model, optimizer, {});
      }
      if (runtime.rank() == 0) {
        fs::create_directory(path(has_saved ? "checkpoint_8" : "checkpoint_4"));
      }
      try {
        series.save(model, optimizer, {});
        FAIL("saved");
      } catch (const acc::Error& error) {
        const std::string expected =
            runtime.rank() != 0 ? "rank 0 could not use the folder of checkpoints "
            : has_saved         ? "found checkpoint_8, which this job did not save (it knows of "
                                  "checkpoint_7 as the newest): another job saves to the same "
                                  "series"
                                : "found checkpoint_4, which this job did not save (it knows of no "
                                  "checkpoint as the newest): another job saves to the same series";
        const std::string message = error.what();
        CAPTURE(message);
        CHECK(message.find(expected) != std::string::npos);
        CHECK(message.find(folder.path().string()) != std::string::npos);
      }
    });
    fs::create_directories(path("checkpoint_4/pytorch_model_fsdp_0"));  // now it is a checkpoint
  }
}

TEST_CASE("a series that cannot name its newest fails on every rank") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "latest" / "in the way");
  acc::test::run_ranks(job_of(2, Strategy::full_shard, StateDictType::sharded),
                       [&](const auto& settings, auto store) {
                         auto runtime = acc::Runtime::from_settings(settings, std::move(store));
                         auto model = runtime.model(1);
                         const Net net(model);
                         const acc::CheckpointSeries series(runtime, folder.path().string(), {});
                         const auto optimizer = model.optimizer(acc::AdamW{});
                         const auto save = [&] {
                           series.save(model, optimizer, {});
                           runtime.barrier();
                         };
                         CHECK_THROWS_WITH_AS(save(), doctest::Contains("latest"), acc::Error);
                       });
}
