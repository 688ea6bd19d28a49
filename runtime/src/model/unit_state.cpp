// SPDX-License-Identifier: Apache-2.0
#include "model/unit_state.hpp"

#include "acc/base/error.hpp"
#include "model/model_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

namespace acc::detail {

using sharding::ParameterRecord;

namespace {

/// All units of this process, by number. A handle that the program passes may belong to another
/// model or to one that no longer exists; this table gives the owner for the error message.
struct LivingUnits {
  std::mutex mutex;
  std::map<std::int32_t, const UnitState*> by_number;  ///< guarded by `mutex`
  std::int32_t next = 0;                               ///< guarded by `mutex`
};

LivingUnits& living_units() {
  static LivingUnits units;
  return units;
}

/// Returns the error for a handle that was passed to the wrong unit. unit, index: of the handle;
/// records: member of UnitState that contains the parameters or buffers.
template <typename Record>
Error foreign_handle(const UnitState& asked, const char* kind, std::int32_t unit, std::size_t index,
                     std::vector<Record> UnitState::*records) {
  LivingUnits& living = living_units();
  const std::lock_guard lock(living.mutex);
  const auto found = living.by_number.find(unit);
  std::string whose = unit < 0 ? "the handle was never given a value"
                               : "the handle belongs to a model that no longer exists";
  if (found != living.by_number.end()) {
    const UnitState& owner = *found->second;
    const std::vector<Record>& all = owner.*records;
    whose = index >= all.size()
                ? fmt::format("the handle does not belong to unit '{}'", owner.label)
                : fmt::format("'{}' belongs to unit '{}'{}", all[index].name, owner.label,
                              owner.model == asked.model ? "" : " of another model");
  }
  return {Errc::invalid_argument,
          fmt::format("unit '{}' was asked for a {} that it does not have: {}", asked.label, kind,
                      whose)};
}

/// least: of each dimension.
std::int64_t numel_of(const char* kind, const std::string& name, const Shape& shape,
                      std::int64_t least) {
  if (std::any_of(shape.begin(), shape.end(), [least](auto d) { return d < least; })) {
    throw Error(Errc::invalid_argument,
                fmt::format("{} {}: every dimension must be at least {}", kind, name, least));
  }
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

UnitState::UnitState(ModelState* in_model, int unit_index, std::string unit_name,
                     std::string unit_class, bool root)
    : model(in_model),
      index(unit_index),
      name(std::move(unit_name)),
      label(sharding::unit_label(name)),
      class_name(std::move(unit_class)),
      is_root(root) {
  LivingUnits& living = living_units();
  const std::lock_guard lock(living.mutex);
  number_ = living.next++;
  living.by_number[number_] = this;
}

// From here on handles of this unit are reported as those of a model that no longer exists.
UnitState::~UnitState() {
  LivingUnits& living = living_units();
  const std::lock_guard lock(living.mutex);
  living.by_number.erase(number_);
}

std::string UnitState::full_name(const std::string& in_unit) const {
  return name.empty() ? in_unit : name + "." + in_unit;
}

Parameter UnitState::add(std::string parameter_name, Shape shape, Initializer initializer,
                         ParameterOptions options) {
  model->check_open("parameter '" + parameter_name + "'");
  ParameterRecord record;
  record.name = full_name(parameter_name);
  record.declared = model->declared_parameters++;
  record.numel = numel_of("parameter", record.name, shape, 1);
  record.shape = std::move(shape);
  record.initializer = std::move(initializer);
  record.trainable = options.trainable;
  record.weight_decay = options.weight_decay;
  if (options.dtypes && !model->context().by_rows) {
    throw Error(
        Errc::invalid_argument,
        fmt::format("parameter {}: dtypes of its own need ModelOptions::by_rows", record.name));
  }
  record.has_own_dtypes = options.dtypes.has_value();
  record.precision = options.dtypes ? sharding::policy_of(*options.dtypes, options.trainable)
                                    : model->context().precision;
  parameters.push_back(std::move(record));
  return {static_cast<std::int32_t>(parameters.size()) - 1, number_};
}

void UnitState::tie(std::string alias, Parameter parameter) {
  model->check_open("tied name '" + alias + "'");
  parameters[checked(parameter)].aliases.push_back(std::move(alias));
}

void UnitState::tie(std::string alias, Buffer buffer) {
  model->check_open("tied name '" + alias + "'");
  buffers[checked(buffer)].aliases.push_back(std::move(alias));
}

Buffer UnitState::add_buffer(std::string buffer_name, Shape shape, Initializer initializer,
                             DType dtype) {
  model->check_open("buffer '" + buffer_name + "'");
  const std::string full = full_name(buffer_name);
  const std::int64_t numel = numel_of("buffer", full, shape, 0);
  buffers.push_back({.name = full,
                     .shape = std::move(shape),
                     .numel = numel,
                     .dtype = dtype,
                     .initializer = std::move(initializer)});
  return {static_cast<std::int32_t>(buffers.size()) - 1, number_};
}

const ParameterRecord& UnitState::record(Parameter parameter) const {
  return parameters[checked(parameter)];
}

const UnitState::Place& UnitState::place(Parameter parameter) const {
  return places[checked(parameter)];
}

acc::model::BufferRecord& UnitState::buffer(Buffer handle) {
  return buffers[checked(handle)];
}

/// Compares the unit's number, not only the index: a handle of another unit may have a valid index.
std::size_t UnitState::checked(Parameter parameter) const {
  const auto position = static_cast<std::size_t>(parameter.index_);
  if (parameter.unit_ != number_ || position >= parameters.size()) {
    throw foreign_handle(*this, "parameter", parameter.unit_, position, &UnitState::parameters);
  }
  return position;
}

std::size_t UnitState::checked(Buffer buffer) const {
  const auto position = static_cast<std::size_t>(buffer.index_);
  if (buffer.unit_ != number_ || position >= buffers.size()) {
    throw foreign_handle(*this, "buffer", buffer.unit_, position, &UnitState::buffers);
  }
  return position;
}

bool UnitState::trains() const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const ParameterRecord& each) { return each.trainable; });
}

void UnitState::set_requires_grad(Parameter parameter, bool requires_grad) {
  const std::size_t position = checked(parameter);
  if (model->context().by_rows) {
    want_gradient(position, requires_grad);
  }
  if (!parameters[position].trainable) {
    if (requires_grad) {
      throw Error(Errc::invalid_argument,
                  fmt::format("parameter '{}' cannot require a gradient: it was declared frozen. "
                              "Declare it as trained, and freeze it afterwards",
                              parameters[position].name));
    }
    return;
  }
  if (requirements_.empty()) {
    requirements_.resize(parameters.size(), {.wanted = uses.backwards > 0});
  }
  Requirement& it = requirements_[position];
  it.now = requires_grad;
  it.paused = it.paused || !requires_grad;
}

void UnitState::want_gradient(std::size_t position, bool wanted) {
  model->finalize();
  ParameterRecord& record = parameters[position];
  if (wanted && !record.trainable) {
    const sharding::PrecisionPolicy& now = record.precision;
    record.precision = sharding::policy_of(
        {.stored = now.stored, .computed = now.viewed, .reduced = now.reduced}, true);
    record.trainable = true;
  }
  places[position].owner->want_gradient(places[position].index, wanted);
}

void UnitState::hold_gradients(bool held) {
  held_ = held;
  for (const Place& place : places) {
    place.owner->hold_gradient(place.index, held);
  }
}

void UnitState::want_gradients() {
  for (Requirement& each : requirements_) {
    each.wanted = each.wanted || each.now;
  }
}

std::vector<std::string> UnitState::without_gradient() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < requirements_.size(); ++i) {
    if (requirements_[i].paused && !requirements_[i].wanted) {
      names.push_back(parameters[i].name);
    }
  }
  return names;
}

void UnitState::clear_requirements() {
  if (held_) {
    return;
  }
  for (Requirement& each : requirements_) {
    each = {.now = each.now, .paused = !each.now};
  }
}

std::int64_t UnitState::numel() const {
  return std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& each) { return sum + each.numel; });
}

}  // namespace acc::detail
