// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer_state.hpp"

#include "flight/recorder.hpp"
#include "kernels/packed_states.hpp"
#include "model/orig_params.hpp"
#include "sharding/initial_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace acc::detail {

using sharding::FlatParameter;

namespace {

std::variant<optim::Rule, ProgramRule> rule_of(const OptimizerSettings& settings) {
  if (const auto* program = std::get_if<ProgramRule>(&settings)) {
    return *program;
  }
  if (const auto* matrices = std::get_if<MatrixRule>(&settings)) {
    optim::Rule others(matrices->others);
    const OptimizerRule& facts = others.facts();
    if (facts.has_matrices() || facts.needs_norms || facts.coefficient(kStates8Bit) == nullptr ||
        others[kStates8Bit] != 0.0) {
      throw Error(Errc::invalid_argument,
                  fmt::format("{} cannot update the other parameters beside a rule of the program "
                              "for matrices: use adamw, adam or lion, with states_8bit 0",
                              facts.title));
    }
    return others;
  }
  return optim::Rule(std::get<NamedRule>(settings));
}

/// Throws Error(invalid_argument) for names of states that are empty, in use or repeated.
void check_states(const std::vector<std::pair<std::string, int>>& states) {
  std::set<std::string> seen = {"step", "param", ""};
  for (const auto& [name, shape] : states) {
    if (!seen.insert(name).second) {
      throw Error(Errc::invalid_argument,
                  fmt::format("a rule of the program names the state '{}': expected names that are "
                              "not empty, not 'step' or 'param', and each given once",
                              name));
    }
  }
}

/// A coefficient of the runtime's rule; 0 if the program has the rule.
double coefficient_of(const std::variant<optim::Rule, ProgramRule>& rule, std::string_view name) {
  const auto* const own = std::get_if<optim::Rule>(&rule);
  return own != nullptr ? (*own)[name] : 0.0;
}

/// Returns the memory that a rank holds, in bytes, by the names of training_metrics.hpp.
std::array<std::pair<std::string_view, double>, 9> memory_by_category(const MemoryReport& memory) {
  const auto value = [](std::string_view name, std::int64_t nbytes) {
    return std::pair(name, static_cast<double>(nbytes));
  };
  return {value("memory.parameters", memory.parameter_bytes),
          value("memory.gradients", memory.gradient_bytes),
          value("memory.optimizer", memory.optimizer_bytes),
          value("memory.gathered", memory.gathered_bytes),
          value("memory.gradient_buffers", memory.gradient_buffer_bytes),
          value("memory.buffers", memory.buffer_bytes),
          value("memory.device", memory.device_bytes),
          value("memory.pinned", memory.pinned_bytes),
          value("memory.snapshot", memory.snapshot_bytes)};
}

/// Throws Error(invalid_argument) for a limit of clipping that is negative or NaN.
void check_limit(const char* what, double limit) {
  if (!(limit >= 0.0)) {
    throw Error(Errc::invalid_argument,
                fmt::format("{}: expected a number of at least 0, found {}", what, limit));
  }
}

}  // namespace

OptimizerState::OptimizerState(std::shared_ptr<ModelState> model, const OptimizerSettings& settings,
                               const std::vector<ParameterGroup>& groups)
    : model_(std::move(model)),
      rule_(rule_of(settings)),
      rates_(coefficient_of(rule_, "lr"), coefficient_of(rule_, "weight_decay"), groups),
      clip_norm_(model_->context().settings.sharding.gradient_clipping.value_or(0.0)) {
  if (const auto* matrices = std::get_if<MatrixRule>(&settings)) {
    matrix_rule_ = *matrices;
    matrix_rule_->update = [this, update = matrices->update](const OwnedMatrix& matrix) {
      sharding::with_program(this->groups(), "the rule of the program for matrices",
                             [&] { update(matrix); });
    };
  }
  check_states(program_states());
  if (model_->context().by_rows) {
    throw Error(
        Errc::not_supported,
        fmt::format("the optimizer {} of a model whose parameters the program holds as rows "
                    "(ModelOptions::by_rows): the program updates them itself",
                    name()));
  }
  if (model_->has_optimizer) {
    throw Error(Errc::invalid_argument,
                "this model has an optimizer already: put parameters that need other settings into "
                "parameter groups of that optimizer");
  }
  if (program_rule() != nullptr && model_->context().precision.stochastic) {
    throw Error(
        Errc::not_supported,
        "stochastic rounding is part of the runtime's own optimizers, and cannot be used with "
        "an optimizer of the program");
  }
  if (program_rule() != nullptr) {
    model_->check_host_weights();
  }
  assign_groups(groups);
  allocate_moments();
  std::vector<FlatParameter*> trained;
  for (const FlatState& state : flats_) {
    trained.push_back(state.flat);
  }
  meter_.emplace(model_->context(), std::move(trained));
  if (model_->context().scales_loss()) {
    scaler_.emplace(model_->context().settings.sharding.loss_scaling);
  }
  if (!model_->context().settings.recording.folder.empty()) {
    start_recording();
  }
  model_->has_optimizer = true;
  model_->renew_optimizer = [this] { renew(); };
}

void OptimizerState::agree(const model::Declaration& declared) {
  declared_ = declared;
  model::check_declared_alike(model_->context(), declared_,
                              "the ranks make different optimizers: ");
}

void OptimizerState::renew() {
  device::Device& device = *model_->context().updater;
  for (const FlatState& state : flats_) {
    for (const Moment& each : state.moments) {
      device.zero(each.values->data(), each.values->nbytes(), device.compute());
    }
    if (state.packed) {
      state.packed->clear();
    }
  }
  steps = 0;
  skipped_steps = 0;
  step_betas_.reset();
  meter_->forget();
  if (scaler_) {
    scaler_.emplace(model_->context().settings.sharding.loss_scaling);
  }
  if (matrix_update_) {
    matrix_update_->renew();
  }
  agree(model::Declaration(declared_));
}

void OptimizerState::start_recording() {
  std::vector<const sharding::ParameterRecord*> parameters;
  for (const FlatParameter* flat : model_->flats()) {
    for (const auto& parameter : flat->parameters()) {
      parameters.push_back(&parameter);
    }
  }
  std::ranges::sort(parameters, {}, &sharding::ParameterRecord::declared);
  std::vector<std::string> units;
  for (const auto& unit : model_->shard_units()) {
    units.push_back(unit->name());
  }
  recording_ = std::make_unique<optim::StepRecording>(model_->context(), parameters, units);
}

OptimizerState::~OptimizerState() {
  model_->late_copies.before_end(*model_->context().updater);
  model_->has_optimizer = false;
  model_->renew_optimizer = nullptr;
}

void OptimizerState::assign_groups(const std::vector<ParameterGroup>& groups) {
  std::vector<std::vector<std::string>> names;
  for (const FlatParameter* flat : model_->flats()) {
    for (const auto& parameter : flat->parameters()) {
      names.push_back(parameter.names());
    }
  }
  const std::vector<std::size_t> assigned = optim::assign_groups(names, groups);
  auto next = assigned.begin();
  for (const FlatParameter* flat : model_->flats()) {
    const auto end = next + static_cast<std::ptrdiff_t>(flat->parameters().size());
    group_of_[flat].assign(next, end);
    next = end;
  }
  check_groups();
}

/// Without fsdp_use_orig_params, FSDP's optimizer sees one flat parameter per unit, which is in one
/// group. This runtime could mix groups within a unit; it refuses them, as FSDP does.
void OptimizerState::check_groups() const {
  for (const auto& unit : model_->shard_units()) {
    std::vector<sharding::ParameterRecord> trained;
    std::map<std::string, std::string> group_of;
    for (const auto& flat : unit->flats()) {
      const std::vector<std::size_t>& groups = group_of_.at(flat.get());
      for (std::size_t i = 0; flat->trainable() && i < groups.size(); ++i) {
        trained.push_back(flat->parameters()[i]);
        group_of[trained.back().name] = rates_.name(groups[i]);
      }
    }
    model::check_grouped_alike(
        model_->context().settings.sharding, unit->name(), trained,
        [&](const sharding::ParameterRecord& each) { return group_of.at(each.name); });
  }
}

std::vector<bool> OptimizerState::matrices_of(const FlatParameter& flat) const {
  std::vector<bool> found;
  const std::vector<std::size_t>& groups = group_of_.at(&flat);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    found.push_back(rates_.matrices(groups[i]) && is_matrix(flat.parameters()[i].shape.size()));
  }
  return found;
}

std::vector<std::pair<std::string, int>> OptimizerState::program_states() const {
  std::vector<std::pair<std::string, int>> all;
  for (const std::string& each :
       program_rule() != nullptr ? program_rule()->states : std::vector<std::string>()) {
    all.emplace_back(each, 0);
  }
  if (matrix_rule_) {
    for (const auto& [name, shape] : matrix_rule_->states) {
      all.emplace_back(name, static_cast<int>(shape));
    }
  }
  return all;
}

bool OptimizerState::is_matrix(std::size_t dimensions) const {
  return matrix_rule_ ? dimensions == 2
                      : own_rule() != nullptr && own_rule()->facts().is_matrix(dimensions);
}

std::vector<bool> OptimizerState::wholes_of(const FlatParameter& flat) const {
  return own_rule() != nullptr && own_rule()->facts().has_wholes_only()
             ? std::vector<bool>(flat.parameters().size(), true)
             : matrices_of(flat);
}

std::vector<OptimizerState::Moment> OptimizerState::moments_of(
    const FlatParameter& flat, const std::vector<bool>& matrices) const {
  const auto& context = model_->context();
  std::vector<Moment> moments;
  if (own_rule() == nullptr) {
    for (const std::string& kind : program_rule()->states) {
      moments.push_back({kind,
                         DType::float32,
                         context.allocate_working(flat.owned().numel, "moments"),
                         {},
                         flat.layout(),
                         flat.owned()});
      moments.back().parameters.resize(flat.parameters().size());
      std::iota(moments.back().parameters.begin(), moments.back().parameters.end(), 0U);
    }
    return moments;
  }
  const std::vector<std::string> of_matrices =
      matrix_rule_ ? std::vector<std::string>() : own_rule()->states(RuleScope::matrices);
  const std::vector<std::string> of_others = own_rule()->states(RuleScope::others);
  for (const std::string& kind : own_rule()->states()) {
    Moment moment{kind, context.precision.moments, nullptr, {}, flat.layout(), flat.owned()};
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      if (std::ranges::count(matrices[i] ? of_matrices : of_others, kind) != 0) {
        moment.parameters.push_back(i);
      }
    }
    if (moment.parameters.empty()) {
      continue;
    }
    // Updates in files are of whole pages, which all arrays have in common.
    if (!context.swap && std::ranges::count(of_matrices, kind) == 0) {
      const auto shards = static_cast<int>(flat.layout().padded_numel / flat.owned().numel);
      const auto own = static_cast<int>(flat.owned().offset / flat.owned().numel);
      moment.layout = sharding::lay_out_some(flat.layout(), moment.parameters, shards);
      const std::int64_t numel = moment.layout.padded_numel / shards;
      moment.owned = {numel * own, numel};
    }
    moment.values =
        context.allocate_state(moment.owned.numel, "moments", context.precision.moments);
    moments.push_back(std::move(moment));
  }
  return moments;
}

void OptimizerState::allocate_moments() {
  const auto& context = model_->context();
  std::int64_t nbytes = 0;
  for (FlatParameter* flat : model_->flats()) {
    if (!flat->trainable()) {
      continue;
    }
    if (packs_states()) {
      flats_.push_back({flat, {}, {}, packed_states_of(*flat)});
      nbytes += flats_.back().packed->nbytes();
      continue;
    }
    const std::vector<bool> matrices = matrices_of(*flat);
    FlatState state{flat, moments_of(*flat, matrices),
                    optim::plan_updates(*flat, group_of_[flat],
                                        context.settings.sharding.sub_group_size, wholes_of(*flat)),
                    nullptr};
    for (const Moment& each : state.moments) {
      if (!model_->context().in_file(each.values->data())) {
        nbytes += static_cast<std::int64_t>(each.values->nbytes());
      }
    }
    flats_.push_back(std::move(state));
  }
  make_matrix_update();
  make_norm_update();
  model_->optimizer_nbytes = nbytes + (matrix_update_ ? matrix_update_->nbytes() : 0) +
                             (norm_update_ ? norm_update_->nbytes() : 0);
}

bool OptimizerState::packs_states() const {
  return own_rule() != nullptr && own_rule()->facts().coefficient(kStates8Bit) != nullptr &&
         (*own_rule())[kStates8Bit] != 0.0;
}

std::unique_ptr<optim::PackedStates> OptimizerState::packed_states_of(FlatParameter& flat) const {
  std::vector<optim::PackedStates::State> states;
  for (const std::string& kind : own_rule()->states()) {
    const auto facts = std::ranges::find(own_rule()->facts().states, kind, &RuleState::key);
    states.push_back({kind, facts->is_signed});
  }
  return std::make_unique<optim::PackedStates>(
      model_->context(), flat, std::move(states), group_of_.at(&flat),
      static_cast<std::int64_t>(std::ceil((*own_rule())[kMin8BitSize])));
}

void OptimizerState::make_norm_update() {
  if (own_rule() == nullptr || !own_rule()->needs_norms()) {
    return;
  }
  std::vector<optim::NormUpdate::Flat> flats;
  for (const FlatState& state : flats_) {
    optim::NormUpdate::Flat flat{state.flat, {}, group_of_[state.flat]};
    for (const Moment& each : state.moments) {
      flat.states.push_back(each.values->data());
    }
    flats.push_back(std::move(flat));
  }
  norm_update_.emplace(model_->context(), std::move(flats));
}

void OptimizerState::make_matrix_update() {
  std::vector<optim::MatrixUpdate::Flat> flats;
  for (const FlatState& state : flats_) {
    optim::MatrixUpdate::Flat flat{state.flat, nullptr, {}};
    const std::vector<bool> matrices = matrices_of(*state.flat);
    const std::vector<bool> wholes = wholes_of(*state.flat);
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      if (wholes[i]) {
        const std::vector<std::int64_t>& shape = state.flat->parameters()[i].shape;
        flat.matrices.push_back({i, group_of_[state.flat][i], shape, matrices[i],
                                 matrix_rule_ ? optim::owned_states(*matrix_rule_, shape)
                                              : own_rule()->owned_states(shape, matrices[i])});
      }
    }
    if (!flat.matrices.empty()) {
      if (!matrix_rule_ && !own_rule()->states(RuleScope::matrices).empty()) {
        flat.momentum = state.moments.front().values->data();  // states of matrices come first
      }
      flats.push_back(std::move(flat));
    }
  }
  if (!flats.empty() && model_->context().settings.elastic_replicas) {
    throw Error(Errc::not_supported,
                fmt::format("elastic_replicas with the optimizer {}: its states of matrices are "
                            "divided among all machines in this version of libacc_runtime",
                            name()));
  }
  if (!flats.empty()) {
    matrix_update_.emplace(model_->context(), model_->counters(), std::move(flats),
                           matrix_rule_
                               ? optim::whole_rule_of(*matrix_rule_)
                               : optim::whole_rule_of(*own_rule(), *model_->context().updater),
                           model_->context().settings.sharding.sub_group_size);
  }
}

// --- agreement ---
//
// Ranks with different optimizers would update their shards by different rules, without an error.
// The whole declaration is compared when the optimizer is made. A step compares a hash of what the
// program may have changed since, in a collective that it needs anyway.

std::vector<double> OptimizerState::base_rates() const {
  std::vector<double> rates;
  for (std::size_t group = 0; group < rates_.size(); ++group) {
    rates.push_back(rates_.base_lr(group));
  }
  return rates;
}

model::Declaration OptimizerState::declaration(const std::vector<double>& rates) const {
  const auto number = [](double value) { return fmt::format("{}", value); };
  model::Declaration all = {{"the optimizer", name()}};
  for (const auto& [state, shape] : program_states()) {
    all.emplace_back("a state of the program's rule", fmt::format("{} of shape {}", state, shape));
  }
  for (const auto& [coefficient, value] : hyper_parameters()) {
    if (coefficient != "lr" && coefficient != "weight_decay") {  // those of the groups follow
      const bool is_switch = own_rule()->facts().coefficient(coefficient)->is_switch;
      all.emplace_back(coefficient, !is_switch ? number(value) : value != 0.0 ? "on" : "off");
    }
  }
  for (std::size_t group = 0; group < rates_.size(); ++group) {
    const std::string of =
        group == 0 ? "" : fmt::format(" of parameter group '{}'", rates_.name(group));
    all.emplace_back("the learning rate" + of, number(rates[group]));
    all.emplace_back("the weight decay" + of, number(rates_.weight_decay(group)));
    if (!rates_.matrices(group)) {
      all.emplace_back("matrices" + of, "updated as the other parameters");
    }
  }
  for (const FlatParameter* flat : model_->flats()) {
    const std::vector<std::size_t>& groups = group_of_.at(flat);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (groups[i] != 0) {
        all.emplace_back(flat->parameters()[i].name,
                         fmt::format("in parameter group '{}'", rates_.name(groups[i])));
      }
    }
  }
  if (step_betas_) {
    all.emplace_back("the betas of the schedule",
                     fmt::format("{} and {}", (*step_betas_)[0], (*step_betas_)[1]));
  }
  all.emplace_back("the norm to clip to", number(clip_norm_));
  all.emplace_back("the value to clip to", number(clip_value_));
  all.emplace_back("the number of steps made", std::to_string(steps));
  all.emplace_back("the loss scale", number(loss_scale()));
  std::istringstream lines(rule_settings_);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = std::min(line.find('='), line.size());
    all.emplace_back(line.substr(0, end), line.substr(std::min(end + 1, line.size())));
  }
  return all;
}

double OptimizerState::hash_of_step() const {
  std::vector<double> values = {clip_norm_, clip_value_, static_cast<double>(steps), loss_scale()};
  values.insert(values.end(), step_rates_.begin(), step_rates_.end());
  if (step_betas_) {
    values.insert(values.end(), step_betas_->begin(), step_betas_->end());
  }
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(double));
  const std::uint64_t hash = sharding::stream_of(bytes, sharding::stream_of(rule_settings_, 0));
  return static_cast<double>(hash >> 11U);  // a double holds integers of 53 bits
}

void OptimizerState::check_alike() {
  if (!model_->check_order(hash_of_step())) {
    model::check_declared_alike(model_->context(), declaration(step_rates_),
                                "the optimizers of the ranks differ: ");
  }
}

void OptimizerState::set_clip_norm(double max_norm) {
  check_limit("the norm to clip to", max_norm);
  clip_norm_ = max_norm;
}

void OptimizerState::set_clip_value(double max_value) {
  check_limit("the value to clip to", max_value);
  clip_value_ = max_value;
}

// --- for checkpoints ---

std::string OptimizerState::name() const {
  return own_rule() != nullptr ? std::string(own_rule()->facts().name) : "program";
}

std::map<std::string, double> OptimizerState::hyper_parameters() const {
  if (own_rule() == nullptr) {
    return {};
  }
  std::map<std::string, double> values(own_rule()->coefficients().begin(),
                                       own_rule()->coefficients().end());
  values["lr"] = lr(0);
  return values;
}

std::vector<OptimizerState::GroupRecord> OptimizerState::group_records() const {
  std::vector<GroupRecord> all;
  for (DeclaredGroup& group : declared_groups()) {
    GroupRecord record{std::move(group.hyper_parameters), {}, group.base_lr};
    for (const sharding::ParameterRecord* parameter : group.parameters) {
      if (parameter->trainable) {
        record.parameters.push_back(parameter->name);
      }
    }
    all.push_back(std::move(record));
  }
  std::erase_if(all, [](const GroupRecord& each) { return each.parameters.empty(); });
  return all;
}

std::vector<OptimizerState::DeclaredGroup> OptimizerState::declared_groups() const {
  std::vector<DeclaredGroup> all;
  for (std::size_t g = 0; g < rates_.size(); ++g) {
    for (const bool decays : {true, false}) {
      DeclaredGroup group{hyper_parameters(), members(g, decays), rates_.base_lr(g)};
      group.hyper_parameters["lr"] = lr(g);
      group.hyper_parameters["weight_decay"] = decays ? rates_.weight_decay(g) : 0.0;
      all.push_back(std::move(group));
    }
  }
  std::erase_if(all, [](const DeclaredGroup& each) { return each.parameters.empty(); });
  return all;
}

std::vector<const sharding::ParameterRecord*> OptimizerState::members(std::size_t group,
                                                                      bool decays) const {
  std::vector<const sharding::ParameterRecord*> found;
  for (const FlatParameter* flat : model_->flats()) {
    const std::vector<std::size_t>& groups = group_of_.at(flat);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto& parameter = flat->parameters()[i];
      if (groups[i] == group && parameter.weight_decay == decays) {
        found.push_back(&parameter);
      }
    }
  }
  std::ranges::sort(found, {}, &sharding::ParameterRecord::declared);
  return found;
}

// --- the step ---
//
// One step: wait for all reductions; compute the global norm of the mean gradient; decide with it,
// on all ranks alike, whether the step is made; clip; update the owned shards; publish the new
// weights. The norm is a collective that every rank of the shard group enters after its last use of
// the old weights and leaves before it writes new ones. It is therefore also the barrier that ranks
// with shared gathered memory need.

// If a collective fails, all groups are aborted. The errors of the NaN policy and of the loss scale
// abort nothing: every rank throws them in the same step, so the groups stay usable.
OptimizerState::Issued OptimizerState::step() {
  // All rates first: a schedule that fails has changed nothing.
  sharding::with_program(groups(), "the learning rates of a step", [&] {
    step_rates_ = rates_.all_lr(steps);
    step_betas_ = rates_.betas(steps);
    const ProgramRule* const rule = program_rule();
    rule_settings_ = rule != nullptr && rule->settings ? rule->settings() : "";
  });
  Issued issued{{.step = steps, .lr = step_rates_.front(), .loss_scale = loss_scale()}, {}};
  if (recording_) {
    begin_recorded_step();
  }
  const auto raised = sharding::guarded(groups(), [&] { return reduce_and_update(issued); });
  if (raised) {
    throw Error(*raised);
  }
  if (scaler_) {
    scaler_->update(issued.info.skipped);
  }
  if (const auto& tracer = model_->context().tracer) {
    tracer->end_step(steps, memory_by_category(model_->memory()));
  }
  record_step(issued);
  if (recording_) {
    end_recorded_step(issued);
  }
  return issued;
}

void OptimizerState::begin_recorded_step() {
  std::vector<optim::StepRecording::Group> groups;
  if (const optim::Rule* const rule = own_rule()) {  // the settings of another are the program's
    for (const GroupRecord& each : group_records()) {
      groups.push_back({std::string(rule->facts().title), each.hyper_parameters, each.parameters,
                        rule->states()});
    }
  }
  recording_->begin_step(groups, shards(false));
}

void OptimizerState::end_recorded_step(const Issued& issued) {
  const StepInfo info = result(issued);
  if (recording_->end_step(shards(false), info,
                           {.norm = clip_norm_,
                            .value = clip_value_,
                            .late = issued.late ? info.clip_coefficient : 1.0})) {
    sharding::guarded(groups(), [&] { groups().world->barrier()->wait(); });
    std::fflush(nullptr);
    std::_Exit(0);
  }
}

void OptimizerState::record_step(const Issued& issued) const {
  const auto& recorder = groups().recorder;
  if (!recorder) {
    return;
  }
  using Value = std::pair<std::string_view, double>;
  std::vector<Value> values = {{"step", static_cast<double>(issued.info.step)},
                               {"learning_rate", issued.info.lr}};
  if (!issued.late) {  // otherwise `result` knows it
    values.emplace_back("gradient_norm", issued.info.grad_norm);
  }
  if (recorder->wants_memory()) {
    const auto memory = memory_by_category(model_->memory());
    values.insert(values.end(), memory.begin(), memory.end());
  }
  recorder->end_step(values);
}

StepInfo OptimizerState::result(const Issued& issued) const {
  StepInfo info = issued.info;
  if (issued.late) {
    const auto figures = sharding::guarded(groups(), [&] { return issued.late->wait(); });
    info.grad_norm = figures[0];
    info.clip_coefficient = figures[1];
    if (const auto& recorder = groups().recorder) {
      const std::array norm = {std::pair{std::string_view("gradient_norm"), info.grad_norm}};
      recorder->report(norm);
    }
  }
  return info;
}

/// The host decides about the step if it may be skipped or raise an error, if values are clipped
/// before the norm, and if the host itself updates.
bool OptimizerState::needs_norm() const {
  const auto& context = model_->context();
  return program_rule() != nullptr || scaler_ ||
         context.settings.sharding.nan_policy != settings::NanPolicy::ignore || clip_value_ > 0.0 ||
         context.offload_optimizer();
}

std::optional<Error> OptimizerState::reduce_and_update(Issued& issued) {
  StepInfo& info = issued.info;
  const auto& context = model_->context();
  const trace::Scope scope(context.tracer.get(), "optimizer", "optimizer", "step");
  const flight::Scope recorded(context.groups.recorder.get(), "step", "");
  model_->check_step(updates_all());
  model_->late_copies.before_step(steps + 1);
  model_->finish_reductions();
  check_alike();
  if (const double correction = model_->mean_correction(); correction != 1.0) {
    meter_->clamp(correction, std::numeric_limits<double>::infinity());
  }
  meter_->measure();
  std::optional<Error> raised;
  if (!needs_norm()) {
    issued.late = meter_->clip_to_norm(clip_norm_);
    apply({.clip = meter_->clip_factor()}, info);
  } else {
    raised = decide_and_update(info);
  }
  model_->after_step();
  skipped_steps += info.skipped ? 1 : 0;
  info.skipped_steps = skipped_steps;
  return raised;
}

std::optional<Error> OptimizerState::decide_and_update(StepInfo& info) {
  const auto& context = model_->context();
  const double unscale = 1.0 / info.loss_scale;
  info.grad_norm = meter_->norm() * unscale;
  const bool finite = std::isfinite(info.grad_norm);
  info.skipped = skips(finite);
  if (!finite && context.watches_gradients()) {
    return meter_->non_finite(steps + 1);
  }
  if (!info.skipped) {
    apply({.known = clip(unscale, info)}, info);
  }
  return std::nullopt;
}

/// The norm is the same on all ranks, so all ranks skip or none does. With fp16 an overflow is part
/// of finding the loss scale; without it, the NaN policy decides.
bool OptimizerState::skips(bool finite) const {
  const bool wanted =
      scaler_ || model_->context().settings.sharding.nan_policy == settings::NanPolicy::skip;
  return !finite && wanted;
}

/// Clipping by value changes the gradients in memory, also removing the loss scale, so the norm has
/// to be computed again. Clipping by norm is a factor that the update applies.
double OptimizerState::clip(double unscale, StepInfo& info) {
  double norm = info.grad_norm;
  if (clip_value_ > 0.0) {
    meter_->clamp(unscale, clip_value_);
    unscale = 1.0;
    if (clip_norm_ > 0.0) {
      meter_->measure();
      norm = meter_->norm();
    }
  }
  info.clip_coefficient = kernels::clip_coefficient(norm, clip_norm_);
  return unscale * info.clip_coefficient;
}

/// Publishes each flat parameter as soon as it is updated, so that its gather (ZeRO 1) overlaps
/// with the update of the next one.
void OptimizerState::apply(const GradientFactor& factor, StepInfo& info) {
  if (recording_) {
    recording_->add_gradients(shards(true), factor.known);
  }
  std::vector<kernels::UpdateStep> updates;  // by group
  if (const auto* const own = own_rule();
      own != nullptr && !own->needs_norms() && !own->facts().has_wholes_only()) {
    for (std::size_t group = 0; group < rates_.size(); ++group) {
      updates.push_back(own->step(step_rates_[group], rates_.weight_decay(group), steps + 1,
                                  factor.known, step_betas_));
    }
  } else if (own == nullptr) {
    model_->late_copies.expose_weights(*model_->context().updater);
    run_rule(*program_rule(), factor.known);
  }
  if (matrix_update_) {
    model_->late_copies.before_writes(*model_->context().updater);
    update_matrices(factor);
  }
  if (packs_states()) {
    model_->late_copies.before_writes(*model_->context().updater);
    update_packed(updates, factor.clip, info);
  }
  for (std::size_t i = 0; !packs_states() && i < flats_.size(); ++i) {
    before_update(flats_[i]);
    if (norm_update_) {
      update_by_norms(i, factor);
    } else if (!updates.empty()) {
      update(flats_[i], updates, factor.clip, info);
    }
    flats_[i].flat->publish();
  }
  if (const auto& swap = model_->context().swap) {
    swap->synchronize();  // a write that fails belongs to this step
  }
  info.step = ++steps;
}

void OptimizerState::before_update(const FlatState& state) {
  device::Device& updater = *model_->context().updater;
  const auto before_write = [&](const void* values, std::int64_t numel, DType dtype) {
    const std::size_t nbytes = static_cast<std::size_t>(numel) * nbytes_of(dtype);
    model_->late_copies.before_write(updater, {static_cast<const std::byte*>(values), nbytes});
  };
  before_write(state.flat->master(), state.flat->owned().numel, state.flat->stored());
  for (const Moment& each : state.moments) {
    before_write(each.values->data(), each.owned.numel, each.dtype);
  }
}

void OptimizerState::update_matrices(const GradientFactor& factor) {
  const optim::Rule& rule = *own_rule();
  const kernels::UpdateStep direction = matrix_rule_ ? optim::gradient_direction(factor.known)
                                                     : rule.direction(0.0, steps + 1, factor.known);
  matrix_update_->run({.number = steps + 1,
                       .direction = direction,
                       .clip = factor.clip,
                       .rates = [&](std::size_t group) {
                         return optim::WholeStep{.lr = step_rates_[group],
                                                 .weight_decay = rates_.weight_decay(group)};
                       }});
}

void OptimizerState::update_by_norms(std::size_t flat, const GradientFactor& factor) {
  const optim::Rule& rule = *own_rule();
  norm_update_->run(flat, {.number = steps + 1,
                           .clip = factor.clip,
                           .direction =
                               [&](std::size_t group) {
                                 return rule.direction(rates_.weight_decay(group), steps + 1,
                                                       factor.known, step_betas_);
                               },
                           .apply =
                               [&](std::size_t group, double weight_norm, double direction_norm) {
                                 return rule.directed_by_norms(step_rates_[group], steps + 1,
                                                               weight_norm, direction_norm,
                                                               step_betas_);
                               }});
}

void OptimizerState::update_packed(std::span<const kernels::UpdateStep> updates, const float* clip,
                                   StepInfo& info) {
  optim::update_packed(model_->context(), packed_states(),
                       {.number = steps + 1, .updates = updates, .clip = clip}, [&](std::size_t i) {
                         flats_[i].flat->publish();
                         ++info.tiles;
                       });
}

std::vector<optim::PackedStates*> OptimizerState::packed_states() const {
  std::vector<optim::PackedStates*> all;
  for (const FlatState& state : flats_) {
    if (state.packed) {
      all.push_back(state.packed.get());
    }
  }
  return all;
}

void OptimizerState::finish_loading() {
  optim::finish_packed(model_->context(), packed_states());
}

void OptimizerState::run_rule(const ProgramRule& rule, double scale) {
  if (scale != 1.0) {
    meter_->clamp(scale, std::numeric_limits<double>::infinity());
  }
  sharding::with_program(groups(), "the update rule of the program",
                         [&] { rule.update(shards(true)); });
  for (FlatState& state : flats_) {
    state.flat->round_master();
  }
}

/// With gradients of zero, a rule without states and decay leaves a parameter as it is.
bool OptimizerState::updates_all() const {
  if (own_rule() == nullptr) {
    return false;
  }
  bool changes = !own_rule()->states().empty() || own_rule()->facts().has_matrices();
  for (std::size_t group = 0; group < rates_.size(); ++group) {
    changes = changes || rates_.weight_decay(group) != 0.0;
  }
  return changes;
}

std::vector<ParameterShard> OptimizerState::shards(bool in_step) {
  std::vector<ParameterShard> all =
      in_step ? model_->shards_with_gradients() : model_->shards(true);
  if (program_rule() == nullptr) {
    return all;
  }
  auto shard = all.begin();
  for (const FlatState& state : flats_) {
    for (std::size_t i = 0; i < state.flat->parameters().size(); ++i, ++shard) {
      for (const Moment& each : state.moments) {
        shard->states.push_back(each.values->as<float>() +
                                overlap(state.flat->layout(), i, state.flat->owned()).in_shard);
      }
    }
  }
  return all;
}

std::vector<ParameterShard> OptimizerState::shards_for_program() {
  model_->late_copies.expose_weights(*model_->context().updater);
  return shards(false);
}

optim::GroupTable& OptimizerState::changeable_rates() {
  if (program_rule() != nullptr) {
    throw Error(Errc::invalid_argument,
                "the learning rates are those of the program's own optimizer: set them there");
  }
  return rates_;
}

namespace {

/// Position in a state of element `begin` of the shard, where the part of a parameter or 0 begins.
std::int64_t position(const OptimizerState::Moment& moment, const FlatParameter& flat,
                      std::int64_t begin) {
  if (moment.owned.numel == flat.owned().numel) {
    return begin;
  }
  const std::int64_t at = flat.owned().offset + begin;
  const std::vector<std::int64_t>& offsets = flat.layout().offsets;
  const auto next = std::ranges::upper_bound(offsets, at);
  const auto i = static_cast<std::size_t>(next - offsets.begin() - 1);
  return moment.layout.offsets[i] + (at - offsets[i]) - moment.owned.offset;
}

}  // namespace

void OptimizerState::update(FlatState& state, std::span<const kernels::UpdateStep> updates,
                            const float* clip, StepInfo& info) {
  const auto& context = model_->context();
  FlatParameter& flat = *state.flat;
  device::Device& updater = *context.updater;
  device::UpdateArrays arrays = flat.update_arrays(steps + 1);
  arrays.clip = clip;
  const std::vector<std::string> kinds = own_rule()->states(RuleScope::others);
  // The arrays from an element on, with the states of the parameters in `tiles`, in the rule's
  // order.
  const auto arrays_from = [&](std::int64_t begin) {
    device::UpdateArrays own = kernels::arrays_from(arrays, static_cast<std::size_t>(begin));
    const std::array<void**, 3> places = {&own.first, &own.second, &own.third};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const auto found = std::ranges::find(state.moments, kinds[i], &Moment::kind);
      if (found != state.moments.end()) {
        *places[i] =
            found->values->as<std::byte>() +
            position(*found, flat, begin) * static_cast<std::int64_t>(nbytes_of(found->dtype));
      }
    }
    return own;
  };
  const bool is_compact = std::ranges::any_of(
      state.moments, [&](const Moment& each) { return each.owned.numel < flat.owned().numel; });
  const bool in_tiles = context.settings.sharding.sub_group_size > 0;
  for (const optim::Tile& tile : state.tiles) {
    const trace::Scope scope(in_tiles ? context.tracer.get() : nullptr, "optimizer", "update",
                             "tile");
    for (const optim::GroupRanges& part : tile) {
      if (!is_compact) {
        updater.update(updates[part.group], arrays_from(0), part.ranges, updater.compute());
      }
      for (std::size_t i = 0; is_compact && i < part.ranges.size(); ++i) {
        const device::UpdateRange& each = part.ranges[i];
        const device::UpdateRange own{0, each.numel, each.decays};
        updater.update(updates[part.group], arrays_from(each.begin), {&own, 1}, updater.compute());
      }
    }
    ++info.tiles;
  }
}

}  // namespace acc::detail
