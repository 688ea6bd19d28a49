// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/lr_schedule.hpp"

#include "acc/base/error.hpp"
#include "optim/from_settings.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

namespace {

using acc::LrSchedule;
using acc::optim::optimizer_of;
using acc::optim::schedule_of;
using acc::settings::OptimizerChoice;
using acc::settings::ScheduleChoice;
using nlohmann::json;

template <typename T>
void take(const json& arguments, const char* name, T& value) {
  if (arguments.contains(name)) {
    value = arguments.at(name).get<typename T::value_type>();
  }
}

LrSchedule schedule_of_case(const std::string& type, const json& arguments) {
  const auto count = [&](const char* name) { return arguments.at(name).get<std::int64_t>(); };
  if (type == "constant") {
    return acc::constant_with_warmup(count("num_warmup_steps"));
  }
  if (type == "linear") {
    return acc::linear_with_warmup(count("num_warmup_steps"), count("num_training_steps"));
  }
  if (type == "cosine") {
    return acc::cosine_with_warmup(count("num_warmup_steps"), count("num_training_steps"),
                                   arguments.at("num_cycles"));
  }
  ScheduleChoice choice{.type = type};
  take(arguments, "warmup_min_lr", choice.warmup_min_lr);
  take(arguments, "warmup_max_lr", choice.warmup_max_lr);
  take(arguments, "warmup_num_steps", choice.warmup_num_steps);
  take(arguments, "total_num_steps", choice.total_num_steps);
  take(arguments, "warmup_min_ratio", choice.warmup_min_ratio);
  take(arguments, "cos_min_ratio", choice.cos_min_ratio);
  choice.warmup_type = arguments.value("warmup_type", choice.warmup_type);
  return schedule_of(choice);
}

}  // namespace

// Values made by test/data/optimizers/make_schedules.py with the packages' own code.
TEST_CASE("schedules equal those of transformers and DeepSpeed, step by step") {
  const auto golden = json::parse(std::ifstream(ACC_TEST_DATA "/optimizers/schedules.json"));
  for (const auto& row : golden.at("cases")) {
    CAPTURE(row.at("type").get<std::string>());
    CAPTURE(row.at("arguments").dump());
    const LrSchedule schedule = schedule_of_case(row.at("type"), row.at("arguments"));
    std::int64_t step = 0;
    for (const double expected : row.at("lr").get<std::vector<double>>()) {
      CAPTURE(step);
      CHECK(schedule(step++, golden.at("base")) == doctest::Approx(expected).epsilon(1e-14));
    }
  }
}

TEST_CASE("invalid numbers of steps are errors that name the setting") {
  CHECK_THROWS_WITH(acc::constant_with_warmup(-1), doctest::Contains("warmup steps must be"));
  CHECK_THROWS_WITH(acc::linear_with_warmup(1, -2), doctest::Contains("total steps must be"));
  CHECK_THROWS_WITH(acc::warmup_lr({.warmup_steps = 0}), doctest::Contains("warmup_num_steps"));
  CHECK_THROWS_WITH(acc::warmup_cosine_lr({}), doctest::Contains("total_num_steps"));
}

TEST_CASE("the settings' optimizer, with torch's defaults") {
  const auto rule_of = [](const acc::settings::OptimizerChoice& choice) {
    return acc::optim::Rule(std::get<acc::NamedRule>(optimizer_of(choice)));
  };
  for (const char* type : {"adam", "AdamW", "adamw"}) {
    const auto plain = rule_of({.type = type});
    CHECK(plain["lr"] == 1e-3);
    CHECK(plain["beta1"] == 0.9);
    CHECK(plain["beta2"] == 0.999);
    CHECK(plain["eps"] == 1e-8);
    CHECK(plain["weight_decay"] == (std::string(type) == "adam" ? 0.0 : 1e-2));
  }
  const auto adamw =
      rule_of({.type = "AdamW", .lr = 0.5, .betas = {0.8, 0.7}, .eps = 1e-3, .weight_decay = 0.25});
  CHECK(adamw["lr"] == 0.5);
  CHECK(adamw["beta1"] == 0.8);
  CHECK(adamw["beta2"] == 0.7);
  CHECK(adamw["eps"] == 1e-3);
  CHECK(adamw["weight_decay"] == 0.25);
  const auto sgd = rule_of({.type = "SGD", .lr = 0.5, .weight_decay = 0.1, .momentum = 0.9});
  CHECK(sgd["lr"] == 0.5);
  CHECK(sgd["momentum"] == 0.9);
  CHECK(sgd["weight_decay"] == 0.1);
  const auto adam = rule_of({.type = "adam", .values = "amsgrad=1,bias_correction=0"});
  CHECK(adam.facts().name == "adam");
  CHECK(adam["amsgrad"] == 1.0);
  CHECK(adam["bias_correction"] == 0.0);
}

TEST_CASE("unsupported optimizers and schedules are errors that name the key") {
  CHECK_THROWS_WITH(optimizer_of({}), doctest::Contains("chooses no optimizer"));
  CHECK_THROWS_WITH(optimizer_of({.type = "LBFGS"}), doctest::Contains("optimizer.type LBFGS"));
  CHECK_THROWS_WITH(optimizer_of({.type = "adam", .values = "amsgrad"}),
                    doctest::Contains("optimizer_values: expected name=number, found 'amsgrad'"));
  CHECK_THROWS_WITH(optimizer_of({.type = "AdamW", .betas = {0.9}}),
                    doctest::Contains("optimizer.params.betas"));
  CHECK_FALSE(schedule_of({}));
  CHECK_THROWS_WITH(schedule_of({.type = "OneCycle"}),
                    doctest::Contains("scheduler.type OneCycle"));
  CHECK_THROWS_WITH(schedule_of({.type = "WarmupDecayLR"}), doctest::Contains("total_num_steps"));
  CHECK_THROWS_WITH(schedule_of({.type = "WarmupLR", .warmup_type = "cubic"}),
                    doctest::Contains("'cubic'"));
}
