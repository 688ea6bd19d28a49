// SPDX-License-Identifier: Apache-2.0
#include "support/module_net.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

// Effects of the settings about modules on training: wrapping, flat parameters, ignored modules,
// several models.
namespace {

using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::settings::WrapPolicy;
using acc::test::distance;
using acc::test::Job;
using acc::test::ModuleNet;
using acc::test::TemporaryFolder;
using acc::test::train;
using acc::test::UnitSpec;
using acc::test::usual_gradient;
using acc::test::Weights;

const std::vector<UnitSpec> kNet = {
    {"net", "Net", -1, {{"embedding", 39}}},
    {"net.h.0", "Block", 0, {{"attn.weight", 40}, {"bias", 4}}},
    {"net.h.0.mlp", "Mlp", 1, {{"weight", 30}}},
    {"net.h.1", "Block", 0, {{"bias", 4}}},
    {"net.h.1.mlp", "Mlp", 3, {{"weight", 30}}},
};

Job module_job(Strategy strategy, int world_size = 2) {
  Job job = acc::test::job_of(strategy, world_size);
  job.copy_gathers = true;
  return job;
}

Weights reference(int steps = 2, const std::vector<UnitSpec>& specs = kNet) {
  return train(module_job(Strategy::no_shard), specs, steps)[0].weights;
}

}  // namespace

TEST_CASE("each wrap policy gives the same training, with different units") {
  struct Case {
    WrapPolicy policy;
    std::vector<std::string> classes;
    std::int64_t min_numel;
    int gather_calls;  ///< per step: two per unit, one for the root
  };
  const Weights expected = reference();
  for (const Case& each :
       {Case{WrapPolicy::unset, {}, 0, 9}, Case{WrapPolicy::no_wrap, {}, 0, 1},
        Case{WrapPolicy::transformer_based, {}, 0, 9},
        Case{WrapPolicy::transformer_based, {"Block"}, 0, 5},
        Case{WrapPolicy::transformer_based, {"Mlp"}, 0, 5},
        // The attention, which is not a declared unit, and both Mlp units.
        Case{WrapPolicy::size_based, {}, 30, 7}, Case{WrapPolicy::size_based, {}, 40, 3},
        Case{WrapPolicy::size_based, {}, 1000, 1}}) {
    CAPTURE(to_string(each.policy));
    CAPTURE(each.min_numel);
    Job job = module_job(Strategy::full_shard);
    job.sharding.wrap_policy = each.policy;
    job.sharding.transformer_layer_classes = each.classes;
    job.sharding.min_num_params = each.min_numel;
    const acc::test::Trained found = train(job, kNet, 2)[0];
    CHECK(distance(expected, found.weights) == 0.0);
    CHECK(found.traffic.gather_calls == each.gather_calls);
    CHECK(found.traffic.reduced_elements == 147);
  }
}

TEST_CASE("a unit that is part of another sharded unit is used outside of that unit's scopes") {
  std::vector<UnitSpec> specs = kNet;
  specs[2].parent = specs[4].parent = 0;  // no longer within the blocks
  const Weights expected = reference(2, specs);
  for (const char* wrapped : {"Block", "Mlp"}) {
    Job job = module_job(Strategy::full_shard);
    job.sharding.wrap_policy = WrapPolicy::transformer_based;
    job.sharding.transformer_layer_classes = {wrapped};
    CHECK(distance(expected, train(job, specs, 2)[0].weights) == 0.0);
  }
}

TEST_CASE("bucket sizes and contiguous_gradients divide a unit's reductions") {
  struct Case {
    const char* name;
    Strategy strategy;
    void (*ask)(ShardingSettings&);
    int reduce_calls;
  };
  const Weights expected = reference();
  for (const Case& each : {
           Case{"as it is", Strategy::full_shard, [](auto&) {}, 1},
           Case{"reduce_bucket_size", Strategy::full_shard,
                [](auto& s) { s.reduce_bucket_size = 50; }, 4},
           Case{"allgather_bucket_size", Strategy::shard_optimizer,
                [](auto& s) { s.allgather_bucket_size = 50; }, 4},
           Case{"allgather_bucket_size where nothing is gathered after the step",
                Strategy::shard_grad_op, [](auto& s) { s.allgather_bucket_size = 50; }, 1},
           Case{"contiguous_gradients", Strategy::shard_grad_op,
                [](auto& s) { s.contiguous_gradients = false; }, 6},
       }) {
    CAPTURE(each.name);
    Job job = module_job(each.strategy);
    job.sharding.wrap_policy = WrapPolicy::no_wrap;
    each.ask(job.sharding);
    const acc::test::Trained found = train(job, kNet, 2)[0];
    CHECK(found.traffic.reduce_calls == each.reduce_calls);
    CHECK(found.traffic.reduced_elements == 147);
    CHECK(distance(expected, found.weights) == 0.0);
  }
}

TEST_CASE("round_robin_gradients: every rank owns parameters of all of the model") {
  for (const bool round_robin : {false, true}) {
    std::mutex mutex;
    std::set<std::pair<int, int>> owners;  // parameter, rank
    Job job = module_job(Strategy::shard_optimizer);
    job.sharding.round_robin_gradients = round_robin;
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model();
      auto& unit = model.unit("net", "Net");
      for (int p = 0; p < 4; ++p) {
        unit.parameter("p" + std::to_string(p), {16},
                       acc::Initializer::pure([&, p, rank = settings.identity.rank](
                                                  std::uint64_t, std::int64_t, std::span<float>) {
                         const std::lock_guard lock(mutex);
                         owners.emplace(p, rank);
                       }));
      }
      { auto use = unit.forward(); }
      runtime.barrier();
    });
    using Owners = std::set<std::pair<int, int>>;
    CHECK(owners == (round_robin ? Owners{{0, 0}, {1, 1}, {2, 0}, {3, 1}}
                                 : Owners{{0, 0}, {1, 0}, {2, 1}, {3, 1}}));
  }
}

TEST_CASE("ignored modules are whole on every rank and not reduced") {
  const auto rule = [](int rank, int micro_step) {
    return [=](const std::string&, int, float) {
      return static_cast<float>((rank + 1) * (micro_step + 1));
    };
  };
  const Weights before = train(module_job(Strategy::no_shard), kNet, 0)[0].weights;
  for (const Strategy strategy :
       {Strategy::no_shard, Strategy::shard_optimizer, Strategy::shard_grad_op,
        Strategy::full_shard, Strategy::hybrid_shard}) {
    for (const int micro_steps : {1, 2}) {
      CAPTURE(to_string(strategy));
      CAPTURE(micro_steps);
      Job job = module_job(strategy, 4);
      job.num_machines = 2;
      job.sharding.ignored_modules = ".*attn|net\\.h\\.1";
      job.sharding.gradient_accumulation_steps = micro_steps;
      const std::vector<acc::test::Trained> ranks = train(job, kNet, 1, rule);
      const double micro = micro_steps == 1 ? 1.0 : 1.5;
      for (int rank = 0; rank < 4; ++rank) {
        const acc::test::Trained& mine = ranks[static_cast<std::size_t>(rank)];
        for (const auto& each : mine.weights) {
          const auto& name = each.first;
          const auto& values = each.second;
          CAPTURE(name);
          const bool ignored = name == "net.h.0.attn.weight" || name.rfind("net.h.1.", 0) == 0;
          const double gradient = micro * (ignored ? rank + 1 : 2.5);
          CHECK(values.back() == doctest::Approx(before.at(name).back() - 0.1 * gradient));
        }
        // 73 elements are common to all ranks. 74 differ per rank; the mean of their squares
        // counts.
        CHECK(mine.step.grad_norm ==
              doctest::Approx(micro * std::sqrt(73 * 2.5 * 2.5 + 74 * (1 + 4 + 9 + 16) / 4.0)));
      }
    }
  }
}

TEST_CASE("ignored modules: memory, files, frozen parameters, and an invalid pattern") {
  Job job = module_job(Strategy::full_shard);
  const std::vector<UnitSpec> specs = {
      {"net", "Net", -1, {{"weight", 64}}},
      {"net.own", "Own", 0, {{"weight", 64}, {"fixed", 64, {.trainable = false}}}}};
  CHECK(train(job, specs, 1)[0].memory.parameter_bytes == 3 * 64 * 4 / 2);
  job.sharding.ignored_modules = "net\\.own";
  CHECK(train(job, specs, 1)[0].memory.parameter_bytes == 64 * 4 / 2 + 2 * 64 * 4);

  const TemporaryFolder folder;
  const std::string path = (folder.path() / "weights.safetensors").string();
  Weights of_rank_0, loaded;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    ModuleNet net(runtime.model(1), specs);
    auto optimizer = net.model().optimizer(acc::Sgd{.lr = 0.1});
    net.micro_step(usual_gradient(settings.identity.rank, 0));
    optimizer.step();
    net.model().export_weights(path);
    const Weights mine = net.read();
    ModuleNet other(runtime.model(2), specs);
    other.model().load_weights(path);
    const Weights again = other.read();
    runtime.barrier();
    if (settings.identity.rank == 0) {
      of_rank_0 = mine;
    } else {
      loaded = again;
    }
  });
  CHECK(distance(of_rank_0, loaded) == 0.0);
  job.sharding.ignored_modules = "(";
  CHECK_THROWS_WITH_AS(train(job, specs, 1), doctest::Contains("fsdp_ignored_modules: '('"),
                       acc::Error);
}

TEST_CASE("use_orig_params: frozen and trained parameters in one unit, or each in their own") {
  const std::vector<UnitSpec> mixed = {
      {"net", "Net", -1, {{"weight", 20}}},
      {"net.layer", "Layer", 0, {{"weight", 20}, {"fixed", 9, {.trainable = false}}}}};
  const std::vector<UnitSpec> apart = {
      {"net", "Net", -1, {{"weight", 20}}},
      {"net.layer", "Layer", 0, {{"weight", 20}}},
      {"net.layer.fixed", "Fixed", 1, {{"fixed", 9, {.trainable = false}}}}};
  Job job = module_job(Strategy::full_shard);
  const acc::test::Trained free = train(job, mixed, 2)[0];
  CHECK(distance(reference(2, mixed), free.weights) == 0.0);
  job.sharding.use_orig_params = false;
  CHECK_THROWS_WITH_AS(train(job, mixed, 2),
                       doctest::Contains("fsdp_use_orig_params false: expected all parameters "
                                         "trained or all frozen in unit 'net.layer'"),
                       acc::Error);
  CHECK(distance(reference(2, apart), train(job, apart, 2)[0].weights) == 0.0);
}

TEST_CASE("use_orig_params: groups of the optimizer within one unit, or one for all of it") {
  const std::vector<UnitSpec> specs = {{"net", "Net", -1, {{"weight", 20}, {"bias", 20}}}};
  acc::settings::RuntimeSettings settings;
  for (const bool orig : {true, false}) {
    CAPTURE(orig);
    settings.sharding.use_orig_params = orig;
    auto runtime = acc::Runtime::from_settings(settings, nullptr);
    const auto optimizer_for = [&](const std::vector<std::string>& names) {
      ModuleNet net(runtime.model(), specs);
      return net.model().optimizer(acc::AdamW{}, {{.name = "slow", .parameters = names}});
    };
    CHECK_NOTHROW(optimizer_for({"net.*"}));
    if (orig) {
      CHECK_NOTHROW(optimizer_for({"net.bias"}));
    } else {
      CHECK_THROWS_WITH_AS(optimizer_for({"net.bias"}),
                           doctest::Contains("expected one group of the optimizer in unit 'net', "
                                             "found net.weight in no group and net.bias in group "
                                             "'slow'"),
                           acc::Error);
    }
  }
}

TEST_CASE("a frozen unit is gathered for the gradient of its input, and reduces nothing") {
  std::vector<UnitSpec> specs = kNet;
  for (const std::size_t unit : {1, 2}) {
    for (auto& parameter : specs[unit].parameters) {
      parameter.options.trainable = false;
    }
  }
  const acc::test::Trained found = train(module_job(Strategy::full_shard), specs, 2)[0];
  CHECK(found.traffic.gather_calls == 9);
  CHECK(found.traffic.reduce_calls == 3);
  CHECK(found.traffic.reduced_elements == 73);
  const Weights before = train(module_job(Strategy::no_shard), specs, 0)[0].weights;
  CHECK(found.weights.at("net.h.0.mlp.weight") == before.at("net.h.0.mlp.weight"));
  CHECK(distance(reference(2, specs), found.weights) == 0.0);
}

TEST_CASE("a tied parameter is stored once, wherever its second name is") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "weights.safetensors").string();
  std::atomic<int> right = 0;
  acc::test::run_ranks(module_job(Strategy::full_shard), [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    ModuleNet net(runtime.model(1, {.unused_units = true}), kNet);
    auto& root = net.unit(0);
    const acc::Parameter embedding = net.parameter(0, 0);
    root.tie("net.embedding_again", embedding);
    root.tie("net.h.0.mlp.head", embedding);  // in a unit that is wrapped separately
    right += net.model().numel() == 147;
    auto optimizer = net.model().optimizer(acc::Sgd{.lr = 1.0});
    const float before = net.read().at("net.embedding")[38];
    {
      auto use = root.forward();
      auto head = net.unit(2).forward();
    }
    {
      auto use = root.backward();
      { auto head = net.unit(2).backward(); }
      for (const float gradient : {2.0F, 3.0F}) {  // two uses, one gradient
        use.grad_to_add(embedding)[38] += gradient;
      }
    }
    optimizer.step();
    right += net.read().at("net.embedding")[38] == before - 5.0F;
    net.model().export_weights(path);

    auto other = runtime.model();  // a model that has them as three parameters
    auto& unit = other.unit("net", "Net");
    std::vector<acc::Parameter> all;
    for (const char* name : {"embedding", "embedding_again", "h.0.mlp.head"}) {
      all.push_back(unit.parameter(name, {39}, acc::zeros()));
    }
    other.load_weights(path);
    const auto guard = other.no_grad();
    const auto use = unit.forward();
    right += use[all[1]][38] == before - 5.0F && use[all[2]][38] == before - 5.0F;
    runtime.barrier();
  });
  CHECK(right == 2 * 3);
}

TEST_CASE("two models and their optimizers take turns in one process") {
  const std::vector<UnitSpec> small = {{"small", "Net", -1, {{"weight", 21}}},
                                       {"small.layer", "Layer", 0, {{"weight", 7}}}};
  Job job = module_job(Strategy::full_shard);
  job.sharding.wrap_policy = WrapPolicy::size_based;  // wraps three modules of one model, and none
  job.sharding.min_num_params = 30;                   // of the other
  const Weights alone = train(job, kNet, 3)[0].weights;
  const Weights small_alone = train(job, small, 3)[0].weights;
  std::vector<std::pair<Weights, Weights>> together(2);
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    const int rank = settings.identity.rank;
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    ModuleNet first(runtime.model(42), kNet);
    ModuleNet second(runtime.model(42), small);
    auto optimizer = first.model().optimizer(acc::Sgd{.lr = 0.1});
    auto other = second.model().optimizer(acc::Sgd{.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      first.micro_step(usual_gradient(rank, 0));
      second.micro_step(usual_gradient(rank, 0));
      if (step % 2 == 0) {
        optimizer.step();
        other.step();
      } else {
        other.step();
        optimizer.step();
      }
    }
    together[static_cast<std::size_t>(rank)] = {first.read(), second.read()};
    runtime.barrier();
  });
  for (const auto& [first, second] : together) {
    CHECK(distance(alone, first) == 0.0);
    CHECK(distance(small_alone, second) == 0.0);
  }
}
