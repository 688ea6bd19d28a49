// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime.hpp"
#include "acc/settings/environment.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

// Settings from the launcher's environment variable to their effect in a program.
namespace {

using acc::settings::Environment;

constexpr int kEffectNumel = 8;

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) {
    environment[name] = value;
  }
  return environment;
}

struct Trajectory {
  std::vector<double> scales;  ///< loss scale before each step
  std::vector<double> rates;   ///< learning rate of each step
  std::vector<float> weights;  ///< after the last step
  bool operator==(const Trajectory&) const = default;
};

using MakeOptimizer = std::function<acc::Optimizer(acc::Model&)>;

/// Makes steps with one rank. overflows: steps in which the gradient is infinite.
Trajectory train(const Environment& environment, const MakeOptimizer& make_optimizer, int steps,
                 const std::set<int>& overflows = {}) {
  auto runtime = acc::Runtime::from_settings(acc::settings::settings_from_environment(environment));
  auto model = runtime.model();
  auto& unit = model.unit("layer", "Layer");
  const auto weight = unit.parameter("weight", {kEffectNumel}, acc::ones());
  auto optimizer = make_optimizer(model);
  Trajectory seen;
  for (int step = 0; step < steps; ++step) {
    seen.scales.push_back(optimizer.loss_scale());
    unit.forward().end();
    auto use = unit.backward();
    const acc::Gradient to = use.grad(weight);
    for (int i = 0; i < kEffectNumel; ++i) {
      to.data[i] = overflows.contains(step)
                       ? std::numeric_limits<float>::infinity()
                       : static_cast<float>(seen.scales.back() * std::sin(i + 3 * step));
    }
    use.end();
    seen.rates.push_back(optimizer.step().lr);
  }
  const auto guard = model.no_grad();
  const auto use = unit.forward();
  seen.weights.assign(use[weight], use[weight] + kEffectNumel);
  return seen;
}

acc::Optimizer from_settings(acc::Model& model) {
  return model.optimizer_from_settings();
}

}  // namespace

TEST_CASE("each value of a file's optimizer block is used by the step") {
  const Environment adamw = {{"ACC_MODE", "deepspeed"}, {"ACC_OPTIMIZER_TYPE", "AdamW"}};
  const Environment sgd = {{"ACC_MODE", "deepspeed"}, {"ACC_OPTIMIZER_TYPE", "SGD"}};
  struct Case {
    Environment base, change;
    MakeOptimizer expected;
  };
  for (const Case& each : {
           Case{adamw,
                {{"ACC_OPTIMIZER_LR", "0.25"}},
                [](auto& model) { return model.optimizer(acc::AdamW{.lr = 0.25}); }},
           Case{adamw,
                {{"ACC_OPTIMIZER_BETAS", "0.5,0.75"}},
                [](auto& model) {
                  return model.optimizer(acc::AdamW{.beta1 = 0.5, .beta2 = 0.75});
                }},
           Case{adamw,
                {{"ACC_OPTIMIZER_EPS", "0.5"}},
                [](auto& model) { return model.optimizer(acc::AdamW{.eps = 0.5}); }},
           Case{adamw,
                {{"ACC_OPTIMIZER_WEIGHT_DECAY", "0.5"}},
                [](auto& model) { return model.optimizer(acc::AdamW{.weight_decay = 0.5}); }},
           Case{adamw,
                {{"ACC_OPTIMIZER_TYPE", "SGD"}},
                [](auto& model) { return model.optimizer(acc::Sgd{}); }},
           Case{sgd,
                {{"ACC_OPTIMIZER_MOMENTUM", "0.5"}},
                [](auto& model) { return model.optimizer(acc::Sgd{.momentum = 0.5}); }},
           Case{sgd,
                {{"ACC_OPTIMIZER_MOMENTUM", "0.5"}, {"ACC_OPTIMIZER_VALUES", "nesterov=1"}},
                [](auto& model) {
                  return model.optimizer(acc::Sgd{.momentum = 0.5, .nesterov = true});
                }},
       }) {
    CAPTURE(each.change.begin()->first);
    constexpr int kSteps = 4;
    const Trajectory changed = train(with(each.base, each.change), from_settings, kSteps);
    CHECK(changed == train({}, each.expected, kSteps));
    CHECK(changed.weights != train(each.base, from_settings, kSteps).weights);
  }
}

TEST_CASE("each value of a file's scheduler block is used by the schedule") {
  const Environment optimizer = {
      {"ACC_MODE", "deepspeed"}, {"ACC_OPTIMIZER_TYPE", "AdamW"}, {"ACC_OPTIMIZER_LR", "0.5"}};
  const Environment warmup = with(optimizer, {{"ACC_SCHEDULER_TYPE", "WarmupLR"},
                                              {"ACC_SCHEDULER_WARMUP_MAX_LR", "0.25"},
                                              {"ACC_SCHEDULER_WARMUP_NUM_STEPS", "4"}});
  const Environment cosine = with(optimizer, {{"ACC_SCHEDULER_TYPE", "WarmupCosineLR"},
                                              {"ACC_SCHEDULER_WARMUP_NUM_STEPS", "4"},
                                              {"ACC_SCHEDULER_TOTAL_NUM_STEPS", "9"}});
  const acc::WarmupLr plain{.max_lr = 0.25, .warmup_steps = 4};
  struct Case {
    Environment base, change;
    acc::LrSchedule expected;
  };
  for (const Case& each : {
           Case{warmup,
                {{"ACC_SCHEDULER_WARMUP_MIN_LR", "0.125"}},
                acc::warmup_lr({.min_lr = 0.125, .max_lr = 0.25, .warmup_steps = 4})},
           Case{warmup,
                {{"ACC_SCHEDULER_WARMUP_MAX_LR", "2"}},
                acc::warmup_lr({.max_lr = 2.0, .warmup_steps = 4})},
           Case{warmup,
                {{"ACC_SCHEDULER_WARMUP_NUM_STEPS", "6"}},
                acc::warmup_lr({.max_lr = 0.25, .warmup_steps = 6})},
           Case{warmup,
                {{"ACC_SCHEDULER_WARMUP_TYPE", "linear"}},
                acc::warmup_lr(
                    {.max_lr = 0.25, .warmup_steps = 4, .type = acc::WarmupType::linear})},
           Case{warmup,
                {{"ACC_SCHEDULER_TYPE", "WarmupDecayLR"}, {"ACC_SCHEDULER_TOTAL_NUM_STEPS", "7"}},
                acc::warmup_decay_lr(plain, 7)},
           Case{cosine,
                {{"ACC_SCHEDULER_TOTAL_NUM_STEPS", "7"}},
                acc::warmup_cosine_lr({.total_steps = 7, .warmup_steps = 4})},
           Case{cosine,
                {{"ACC_SCHEDULER_WARMUP_MIN_RATIO", "0.5"}},
                acc::warmup_cosine_lr(
                    {.total_steps = 9, .warmup_min_ratio = 0.5, .warmup_steps = 4})},
           Case{cosine,
                {{"ACC_SCHEDULER_COS_MIN_RATIO", "0.5"}},
                acc::warmup_cosine_lr({.total_steps = 9, .warmup_steps = 4, .cos_min_ratio = 0.5})},
           Case{warmup,
                {{"ACC_SCHEDULER_TYPE", "LRRangeTest"},
                 {"ACC_SCHEDULER_VALUES", "lr_range_test_min_lr=0.25,lr_range_test_step_size=3"}},
                acc::schedule_of(acc::NamedSchedule{"LRRangeTest",
                                                    {{"lr_range_test_min_lr", 0.25},
                                                     {"lr_range_test_step_size", 3.0}}})
                    .lr},
       }) {
    CAPTURE(each.change.begin()->first);
    constexpr int kSteps = 10;
    const Trajectory changed = train(with(each.base, each.change), from_settings, kSteps);
    for (int step = 0; step < kSteps; ++step) {
      CAPTURE(step);
      CHECK(changed.rates[static_cast<std::size_t>(step)] == each.expected(step, 0.5));
    }
    CHECK(changed.rates != train(each.base, from_settings, kSteps).rates);
  }
}

TEST_CASE("each value of a file's fp16 block changes the loss scale") {
  const Environment fp16 = {{"ACC_MODE", "deepspeed"},
                            {"ACC_MIXED_PRECISION", "fp16"},
                            {"ACC_FP16_INITIAL_SCALE_POWER", "8"}};
  struct Case {
    Environment change;
    std::vector<double> scales;
  };
  // DeepSpeed's DynamicLossScaler halves the scale at the second overflow. It forgets the first one
  // after a window of clean steps or, with consecutive_hysteresis, after one clean step.
  for (const Case& each : {
           Case{{}, {256, 256, 256, 256, 128, 64, 64, 64}},
           Case{{{"ACC_FP16_LOSS_SCALE", "32"}}, {32, 32, 32, 32, 32, 32, 32, 32}},
           Case{{{"ACC_FP16_INITIAL_SCALE_POWER", "4"}}, {16, 16, 16, 16, 8, 4, 4, 4}},
           Case{{{"ACC_FP16_LOSS_SCALE_WINDOW", "1"}}, {256, 256, 256, 256, 128, 64, 64, 128}},
           Case{{{"ACC_FP16_HYSTERESIS", "1"}}, {256, 256, 128, 128, 64, 32, 32, 32}},
           Case{{{"ACC_FP16_HYSTERESIS", "3"}}, {256, 256, 256, 256, 256, 128, 128, 128}},
           Case{{{"ACC_FP16_CONSECUTIVE_HYSTERESIS", "true"}},
                {256, 256, 256, 256, 256, 128, 128, 128}},
           Case{{{"ACC_FP16_MIN_LOSS_SCALE", "100"}}, {256, 256, 256, 256, 128, 100, 100, 100}},
       }) {
    CAPTURE((each.change.empty() ? "none" : each.change.begin()->first));
    const Trajectory seen =
        train(with(fp16, each.change), [](auto& model) { return model.optimizer(acc::Sgd{}); }, 8,
              {1, 3, 4});
    CHECK(seen.scales == each.scales);
  }
}

TEST_CASE("fsdp_state_dict_type and zero3_save_16bit_model name the files of a checkpoint") {
  struct Case {
    Environment environment;
    std::set<std::string> files;
  };
  const std::set<std::string> others = {"acc_checkpoint.json", "random_states_0.pkl"};
  for (const Case& each : {
           Case{{{"ACC_MODE", "fsdp"}, {"FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT"}},
                {"pytorch_model_fsdp_0", "optimizer_0"}},
           Case{{{"ACC_MODE", "fsdp"}, {"FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT"}},
                {"pytorch_model_fsdp.bin", "optimizer.bin"}},
           Case{{{"ACC_MODE", "fsdp"}, {"FSDP_STATE_DICT_TYPE", "LOCAL_STATE_DICT"}},
                {"pytorch_model_fsdp_rank0.bin", "optimizer_0"}},
           Case{{{"ACC_MODE", "deepspeed"}, {"ACC_ZERO3_SAVE_16BIT_MODEL", "true"}},
                {"pytorch_model_fsdp_0", "optimizer_0", "pytorch_model.bin"}},
       }) {
    const acc::test::TemporaryFolder folder;
    auto runtime =
        acc::Runtime::from_settings(acc::settings::settings_from_environment(each.environment));
    auto model = runtime.model();
    model.unit("layer", "Layer").parameter("weight", {kEffectNumel}, acc::ones());
    auto optimizer = model.optimizer(acc::AdamW{});
    runtime.save((folder.path() / "saved").string(), model, optimizer);
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "saved")) {
      files.insert(entry.path().filename().string());
    }
    std::set<std::string> expected = each.files;
    expected.insert(others.begin(), others.end());
    CHECK(files == expected);
  }
}
