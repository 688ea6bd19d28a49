#pragma once

#include "model/model_state.hpp"

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
  OptimizerState(std::shared_ptr<ModelState> model, OptimizerSettings settings,
                 const std::vector<ParameterGroup>& groups);

  StepInfo step();

  /// float32 [owned().numel] of one flat parameter under its name in checkpoints; memory of the
  /// updater.
  struct Moment {
    std::string kind;
    device::MemoryPtr values;
  };
  struct FlatState {
    sharding::FlatParameter* flat;
    std::vector<Moment> moments;
    std::vector<device::UpdateRange> ranges;
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
  void finish_reductions();
  double global_norm();
  /// Sum of squares over this rank's gradients of ignored or of all other flat parameters.
  double local_squares(bool ignored);
  void update(FlatState& state, double grad_scale);

  std::shared_ptr<ModelState> model_;
  OptimizerSettings settings_;
  std::vector<FlatState> flats_;
  device::MemoryPtr squares_;       ///< one double of the updater
  device::MemoryPtr squares_here_;  ///< and its copy in host memory
};

}  // namespace acc::detail
