#pragma once

#include "model_state.hpp"

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace acc::detail {

using OptimizerSettings = std::variant<AdamW, Sgd>;

/// Moments of the owned shards, and the step.
class OptimizerState {
 public:
  OptimizerState(std::shared_ptr<ModelState> model, OptimizerSettings settings);

  StepInfo step();

  /// float32 [owned().numel] of one flat parameter under its name in checkpoints.
  struct Moment {
    std::string kind;
    std::vector<float> values;
  };
  struct FlatState {
    sharding::FlatParameter* flat;
    std::vector<Moment> moments;
  };
  [[nodiscard]] std::vector<FlatState>& flats() noexcept { return flats_; }
  [[nodiscard]] const sharding::Groups& groups() const noexcept { return model_->engine().groups; }
  /// For checkpoints: "adamw" or "sgd", its settings by name, and its moments.
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::map<std::string, double> hyper_parameters() const;
  [[nodiscard]] std::vector<std::string> moment_kinds() const;

  double lr;
  double clip_norm;
  std::int64_t steps = 0;

 private:
  double global_norm();
  void update(FlatState& state, double grad_scale);

  std::shared_ptr<ModelState> model_;
  OptimizerSettings settings_;
  std::vector<FlatState> flats_;
};

}  // namespace acc::detail
