// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/declaration.hpp"
#include "model/model_state.hpp"
#include "optim/gradient_meter.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/matrix_update.hpp"
#include "optim/norm_update.hpp"
#include "optim/packed_update.hpp"
#include "optim/parameter_groups.hpp"
#include "optim/step_recording.hpp"
#include "optim/update.hpp"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace acc::detail {

using optim::OptimizerSettings;

/// The optimizer of one model: moments of the owned shards, learning rates, and the step. Only the
/// owned part of each flat parameter has moments (ZeRO: arXiv 1910.02054, section 5.1).
class OptimizerState {
 public:
  OptimizerState(std::shared_ptr<ModelState> model, const OptimizerSettings& settings,
                 const std::vector<ParameterGroup>& groups);
  ~OptimizerState();
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;

  /// A step whose work has been issued.
  struct Issued {
    StepInfo info;
    /// Norm and clip coefficient, which `info` lacks then.
    std::optional<sharding::LateDoubles> late;
  };
  Issued step();
  void zero_grad() {
    sharding::guarded(groups(), [this] { model_->drop_gradients(); });
  }
  /// Returns the whole result. Blocks until the norm is computed.
  [[nodiscard]] StepInfo result(const Issued& issued) const;
  [[nodiscard]] double loss_scale() const noexcept { return scaler_ ? scaler_->scale() : 1.0; }

  /// Learning rates of the next step.
  [[nodiscard]] optim::GroupTable& rates() noexcept { return rates_; }
  /// The same, to change them. Throws Error(invalid_argument) for a ProgramRule, which has its own.
  [[nodiscard]] optim::GroupTable& changeable_rates();
  [[nodiscard]] double lr(std::size_t group) const { return rates_.lr(group, steps); }
  /// Null: the rule is not one of the program.
  [[nodiscard]] const ProgramRule* program_rule() const { return std::get_if<ProgramRule>(&rule_); }

  /// One moment of a flat parameter, in memory of the updater.
  struct Moment {
    std::string kind;          ///< key of the rule's state, also in checkpoints
    DType dtype;               ///< PrecisionPolicy::moments; float32 for a rule of the program
    device::MemoryPtr values;  ///< [owned.numel]
    std::vector<std::size_t> parameters;  ///< indices of those that have it
    sharding::FlatLayout layout;          ///< of the flat parameter, or of `parameters` alone
    sharding::Shard owned;                ///< this rank's
  };
  struct FlatState {
    sharding::FlatParameter* flat;
    std::vector<Moment> moments;
    std::vector<optim::Tile> tiles;
    std::unique_ptr<optim::PackedStates> packed;  ///< in place of moments and tiles; null: none
  };
  [[nodiscard]] std::vector<FlatState>& flats() noexcept { return flats_; }
  /// The states that lie on the ranks that own their parameters; null: there are none.
  [[nodiscard]] const std::vector<optim::OwnedArray>* owned() const noexcept {
    return matrix_update_ ? &matrix_update_->owned() : nullptr;
  }
  [[nodiscard]] const sharding::Groups& groups() const noexcept { return model_->context().groups; }

  [[nodiscard]] const ModelState& model() const noexcept { return *model_; }
  /// Throws Error(disagreement) on every rank if the ranks have made different optimizers.
  /// declared: by this one. Collective.
  void agree(const model::Declaration& declared);

  /// This rank's parts of the trained parameters; in a step with their gradients.
  [[nodiscard]] std::vector<ParameterShard> shards(bool in_step);
  /// The same outside of a step, for the program, which may change them from now on.
  [[nodiscard]] std::vector<ParameterShard> shards_for_program();

  // --- for checkpoints
  /// Ends the loading of states in 8 bits (PackedStates::write). Collective.
  void finish_loading();
  /// Name of the rule, or "program", and its settings by name.
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::map<std::string, double> hyper_parameters() const;
  /// The parameter groups in the form of torch's optimizer. torch has one weight decay per group,
  /// so parameters without decay form a separate group behind those with decay.
  struct GroupRecord {
    std::map<std::string, double> hyper_parameters;
    std::vector<std::string> parameters;  ///< the trained ones, in the order of their declaration
    double base_lr;                       ///< the schedule's base
  };
  [[nodiscard]] std::vector<GroupRecord> group_records() const;
  /// The same groups with all parameters that the program declared, also frozen ones. A group may
  /// have frozen ones only.
  struct DeclaredGroup {
    std::map<std::string, double> hyper_parameters;
    std::vector<const sharding::ParameterRecord*> parameters;  ///< in the order of declaration
    double base_lr;
  };
  [[nodiscard]] std::vector<DeclaredGroup> declared_groups() const;
  /// True if rates follow a schedule; its position is `steps`.
  [[nodiscard]] bool has_schedule() const { return rates_.has_schedule(); }
  [[nodiscard]] std::optional<optim::LossScaler>& scaler() noexcept { return scaler_; }

  /// Everything in which the ranks must agree, by name. rates: of the groups.
  [[nodiscard]] model::Declaration declaration(const std::vector<double>& rates) const;
  [[nodiscard]] model::Declaration declaration() const { return declaration(base_rates()); }
  /// Throw Error(invalid_argument) for a limit that is negative or NaN; 0: no clipping.
  void set_clip_norm(double max_norm);
  void set_clip_value(double max_value);
  [[nodiscard]] double clip_norm() const noexcept { return clip_norm_; }
  [[nodiscard]] double clip_value() const noexcept { return clip_value_; }

  std::int64_t steps = 0;  ///< steps made, without skipped ones; the schedule's position
  std::int64_t skipped_steps = 0;

 private:
  /// Part of ModelState::renew: everything but the settings is as after `agree`.
  void renew();
  void assign_groups(const std::vector<ParameterGroup>& groups);
  void check_groups() const;
  /// Returns a group's parameters with (`decays`) or without weight decay.
  [[nodiscard]] std::vector<const sharding::ParameterRecord*> members(std::size_t group,
                                                                      bool decays) const;
  /// True for the parameters in RuleScope::matrices.
  [[nodiscard]] std::vector<bool> matrices_of(const sharding::FlatParameter& flat) const;
  /// True for the parameters that are updated as wholes.
  [[nodiscard]] std::vector<bool> wholes_of(const sharding::FlatParameter& flat) const;
  void allocate_moments();
  [[nodiscard]] std::vector<Moment> moments_of(const sharding::FlatParameter& flat,
                                               const std::vector<bool>& matrices) const;
  [[nodiscard]] std::unique_ptr<optim::PackedStates> packed_states_of(
      sharding::FlatParameter& flat) const;
  void make_matrix_update();
  void make_norm_update();
  /// Makes the step, except for the loss scale. Returns the error of the NaN policy "raise".
  std::optional<Error> reduce_and_update(Issued& issued);
  /// Records the step for those who watch the job.
  void record_step(const Issued& issued) const;
  /// True if the rule changes parameters whose gradient is zero.
  [[nodiscard]] bool updates_all() const;
  /// The part of it that the norm decides.
  std::optional<Error> decide_and_update(StepInfo& info);
  /// True if the host has to know the norm before it issues the update.
  [[nodiscard]] bool needs_norm() const;
  /// Factor on the gradients of a step.
  struct GradientFactor {
    double known = 1.0;
    const float* clip = nullptr;  ///< UpdateArrays::clip
  };
  [[nodiscard]] bool skips(bool finite) const;
  /// Writes what ACC_RECORD asks for. After the last step that is to be recorded, this process
  /// ends.
  void start_recording();
  void begin_recorded_step();
  void end_recorded_step(const Issued& issued);
  /// Clips, and returns the factor by which the update multiplies the gradients. unscale: factor
  /// that removes the loss scale.
  double clip(double unscale, StepInfo& info);
  void apply(const GradientFactor& factor, StepInfo& info);
  /// Ends the copies of a flat parameter's weights and moments that are under way.
  void before_update(const FlatState& state);
  void update_matrices(const GradientFactor& factor);
  void update_by_norms(std::size_t flat, const GradientFactor& factor);
  void update_packed(std::span<const kernels::UpdateStep> updates, const float* clip,
                     StepInfo& info);
  /// updates: by group. clip: GradientFactor::clip.
  void update(FlatState& state, std::span<const kernels::UpdateStep> updates, const float* clip,
              StepInfo& info);
  [[nodiscard]] std::vector<double> base_rates() const;
  /// Throws Error(disagreement) on every rank if the ranks' optimizers differ. Collective.
  void check_alike();
  /// Hash of what the program may change between steps, as an integer that a double holds.
  [[nodiscard]] double hash_of_step() const;
  void run_rule(const ProgramRule& rule, double scale);
  [[nodiscard]] std::vector<optim::PackedStates*> packed_states() const;
  /// True if states are kept in 8 bits.
  [[nodiscard]] bool packs_states() const;
  [[nodiscard]] const optim::Rule* own_rule() const { return std::get_if<optim::Rule>(&rule_); }
  /// Names and MatrixState of the states of a rule of the program.
  [[nodiscard]] std::vector<std::pair<std::string, int>> program_states() const;
  /// True if a parameter of so many dimensions may be updated as a whole matrix.
  [[nodiscard]] bool is_matrix(std::size_t dimensions) const;

  std::shared_ptr<ModelState> model_;
  model::Declaration declared_;  ///< of `agree`
  std::variant<optim::Rule, ProgramRule> rule_;
  std::optional<MatrixRule> matrix_rule_;  ///< of the program; the other parameters have `rule_`
  optim::GroupTable rates_;
  std::vector<double> step_rates_;  ///< learning rates of the running step, by group
  std::optional<std::array<double, 2>> step_betas_;  ///< of the running step, from the schedule
  std::string rule_settings_;                        ///< ProgramRule::settings of the running step
  double clip_norm_ = 0.0;
  double clip_value_ = 0.0;
  std::vector<FlatState> flats_;
  std::map<const sharding::FlatParameter*, std::vector<std::size_t>> group_of_;
  std::optional<optim::LossScaler> scaler_;
  std::optional<optim::GradientMeter> meter_;
  std::optional<optim::NormUpdate> norm_update_;  ///< absent: the rule needs no norms
  std::optional<optim::MatrixUpdate>
      matrix_update_;                                ///< absent: no parameter is updated as a whole
  std::unique_ptr<optim::StepRecording> recording_;  ///< null: nothing is recorded
};

}  // namespace acc::detail
