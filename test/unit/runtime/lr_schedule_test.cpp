// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/lr_schedule.hpp"

#include "acc/base/error.hpp"
#include "optim/from_settings.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

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
  if (const std::map<std::string, const char*> names = {{"num_warmup_steps", "warmup_steps"},
                                                        {"num_training_steps", "total_steps"},
                                                        {"num_stable_steps", "stable_steps"},
                                                        {"num_decay_steps", "decay_steps"},
                                                        {"num_cycles", "cycles"}};
      std::string_view("cosine_with_restarts polynomial inverse_sqrt warmup_stable_decay")
          .find(type) != std::string_view::npos) {
    acc::NamedSchedule named{type, {}};
    for (const auto& [key, value] : arguments.items()) {
      const auto found = names.find(key);
      const std::vector<std::string> shapes = {"linear", "cosine", "1-sqrt"};
      named.values[found != names.end() ? found->second : key] =
          value.is_string()
              ? static_cast<double>(std::ranges::find(shapes, value.get<std::string>()) -
                                    shapes.begin())
              : value.get<double>();
    }
    return acc::schedule_of(named).lr;
  }
  ScheduleChoice choice{.type = type};
  for (const auto& [key, value] : arguments.items()) {
    if (key.starts_with("cycle_") || key.starts_with("decay_") || key.starts_with("lr_range_")) {
      choice.values += (choice.values.empty() ? "" : ",") + key + "=" +
                       (value.is_boolean() ? (value.get<bool>() ? "1" : "0") : value.dump());
    }
  }
  take(arguments, "warmup_min_lr", choice.warmup_min_lr);
  take(arguments, "warmup_max_lr", choice.warmup_max_lr);
  take(arguments, "warmup_num_steps", choice.warmup_num_steps);
  take(arguments, "total_num_steps", choice.total_num_steps);
  take(arguments, "warmup_min_ratio", choice.warmup_min_ratio);
  take(arguments, "cos_min_ratio", choice.cos_min_ratio);
  choice.warmup_type = arguments.value("warmup_type", choice.warmup_type);
  return schedule_of(choice).lr;
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

TEST_CASE("OneCycle cycles the momentum of an optimizer with betas as DeepSpeed does") {
  const auto golden = json::parse(std::ifstream(ACC_TEST_DATA "/optimizers/schedules.json"));
  int cases = 0;
  for (const auto& row : golden.at("cases")) {
    if (row.contains("betas")) {
      ++cases;
      CAPTURE(row.at("arguments").dump());
      acc::NamedSchedule named{row.at("type"), {}};
      for (const auto& [key, value] : row.at("arguments").items()) {
        named.values[key] =
            value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
      }
      const acc::StepSchedule schedule = acc::schedule_of(named);
      std::int64_t step = 0;
      for (const auto& expected : row.at("betas")) {
        CAPTURE(step);
        const auto found = schedule.betas(step++);
        CHECK(found[0] == doctest::Approx(expected[0].get<double>()).epsilon(1e-14));
        CHECK(found[1] == expected[1].get<double>());
      }
    }
  }
  CHECK(cases == 3);
  const acc::NamedSchedule still{
      "OneCycle", {{"cycle_min_lr", 0.1}, {"cycle_max_lr", 0.2}, {"cycle_momentum", 0.0}}};
  CHECK_FALSE(acc::schedule_of(still).betas);
}

TEST_CASE("schedules by name: unknown, missing and wrong values are errors that name them") {
  struct Row {
    acc::NamedSchedule schedule;
    const char* message;
  };
  for (const Row& each :
       {Row{{"quadratic", {}}, "no schedule is named 'quadratic'; there are constant, linear"},
        Row{{"linear", {}}, "linear: total_steps must be given"},
        Row{{"linear", {{"steps", 1.0}}}, "steps is unknown; there are total_steps, warmup_steps"},
        Row{{"polynomial", {{"total_steps", 1.5}}},
            "total_steps must be a whole number, found 1.5"},
        Row{{"polynomial", {{"total_steps", -1.0}}}, "total_steps must be at least 0, found -1"},
        Row{{"LRRangeTest", {{"lr_range_test_step_size", 0.0}}}, "must be at least 1, found 0"},
        Row{{"OneCycle", {{"cycle_min_lr", 0.1}}}, "cycle_max_lr must be given"},
        Row{{"OneCycle", {{"cycle_min_lr", 0.1}, {"cycle_max_lr", 1.0}, {"cycle_max_mom", 1.0}}},
            "must be below 1"},
        Row{{"warmup_stable_decay",
             {{"warmup_steps", 1.0},
              {"stable_steps", 1.0},
              {"decay_steps", 1.0},
              {"decay_type", 3.0}}},
            "decay_type must be 0 (linear)"}}) {
    CHECK_THROWS_WITH_AS(acc::schedule_of(each.schedule), doctest::Contains(each.message),
                         acc::Error);
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
  CHECK_FALSE(schedule_of(ScheduleChoice{}).lr);
  CHECK_THROWS_WITH(schedule_of({.type = "StepLR"}), doctest::Contains("scheduler.type StepLR"));
  CHECK_THROWS_WITH(schedule_of({.type = "WarmupDecayLR"}), doctest::Contains("total_num_steps"));
  CHECK_THROWS_WITH(schedule_of({.type = "WarmupLR", .warmup_type = "cubic"}),
                    doctest::Contains("'cubic'"));
}
