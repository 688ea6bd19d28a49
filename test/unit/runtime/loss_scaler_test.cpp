// SPDX-License-Identifier: Apache-2.0
#include "optim/loss_scaler.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

namespace {

using acc::optim::LossScaler;
using acc::settings::LossScaleRule;
using acc::settings::LossScaling;

LossScaling rules_of(const nlohmann::json& row) {
  return {
      .rule = row.at("rule") == "deepspeed" ? LossScaleRule::deepspeed : LossScaleRule::grad_scaler,
      .initial_scale_power = row.at("power"),
      .window = row.at("window"),
      .hysteresis = row.value("hysteresis", 1),
      .consecutive_hysteresis = row.value("consecutive_hysteresis", false),
      .min_scale = row.value("min_scale", 0.0)};
}

}  // namespace

// Values made by test/data/optimizers/make_loss_scales.py with torch's and DeepSpeed's own code.
TEST_CASE("the loss scale changes like torch's and DeepSpeed's") {
  const auto golden =
      nlohmann::json::parse(std::ifstream(ACC_TEST_DATA "/optimizers/loss_scales.json"));
  for (const auto& row : golden.at("cases")) {
    CAPTURE(row.dump());
    LossScaler scaler(rules_of(row));
    const auto scales = row.at("scales").get<std::vector<double>>();
    const auto overflows = row.at("overflows").get<std::vector<int>>();
    for (std::size_t step = 0; step < scales.size(); ++step) {
      CAPTURE(step);
      CHECK(scaler.scale() == scales[step]);
      const bool ends = row.at("error") && step + 1 == scales.size();
      if (ends) {
        CHECK_THROWS_WITH_AS(scaler.update(true), doctest::Contains("at its minimum"), acc::Error);
      } else if (step < overflows.size()) {
        scaler.update(overflows[step] != 0);
      }
      // A scaler restored from its state continues like the original.
      LossScaler restored(rules_of(row));
      restored.restore(scaler.state());
      CHECK(restored.state() == scaler.state());
      scaler = restored;
    }
  }
}

TEST_CASE("a static loss scale never changes") {
  LossScaler scaler({.rule = LossScaleRule::deepspeed, .static_scale = 128.0, .window = 1});
  for (const bool overflow : {true, false, true, true, false, false}) {
    scaler.update(overflow);
    CHECK(scaler.scale() == 128.0);
  }
  scaler.restore({{"scale", 4.0}});
  CHECK(scaler.scale() == 128.0);
}
