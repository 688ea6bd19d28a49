#include "model/unit_state.hpp"

#include "acc/base/error.hpp"
#include "model/model_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace acc::detail {

using sharding::ParameterRecord;

namespace {

std::int64_t numel_of(const char* kind, const std::string& name, const Shape& shape) {
  if (std::any_of(shape.begin(), shape.end(), [](auto d) { return d <= 0; })) {
    throw Error(Errc::invalid_argument,
                fmt::format("{} {}: every dimension must be at least 1", kind, name));
  }
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

std::string UnitState::full_name(const std::string& in_unit) const {
  return name.empty() ? in_unit : name + "." + in_unit;
}

Parameter UnitState::add(std::string parameter_name, Shape shape, Initializer initializer,
                         ParameterOptions options) {
  model->check_open("parameter '" + parameter_name + "'");
  ParameterRecord record;
  record.name = full_name(parameter_name);
  record.numel = numel_of("parameter", record.name, shape);
  record.shape = std::move(shape);
  record.initializer = std::move(initializer);
  record.trainable = options.trainable;
  record.weight_decay = options.weight_decay;
  parameters.push_back(std::move(record));
  return Parameter(static_cast<int>(parameters.size()) - 1);
}

void UnitState::tie(std::string alias, Parameter parameter) {
  model->check_open("tied name '" + alias + "'");
  parameters[checked(parameter)].aliases.push_back(std::move(alias));
}

Buffer UnitState::add_buffer(std::string buffer_name, Shape shape, Initializer initializer) {
  model->check_open("buffer '" + buffer_name + "'");
  const std::string full = full_name(buffer_name);
  const std::int64_t numel = numel_of("buffer", full, shape);
  buffers.push_back({.name = full,
                     .shape = std::move(shape),
                     .numel = numel,
                     .initializer = std::move(initializer)});
  return Buffer(static_cast<int>(buffers.size()) - 1);
}

const ParameterRecord& UnitState::record(Parameter parameter) const {
  return parameters[checked(parameter)];
}

const UnitState::Place& UnitState::place(Parameter parameter) const {
  return places[checked(parameter)];
}

acc::model::BufferRecord& UnitState::buffer(Buffer handle) {
  if (handle.index_ < 0 || static_cast<std::size_t>(handle.index_) >= buffers.size()) {
    throw Error(Errc::invalid_argument, fmt::format("this buffer is not one of unit '{}'", name));
  }
  return buffers[static_cast<std::size_t>(handle.index_)];
}

std::size_t UnitState::checked(Parameter parameter) const {
  if (parameter.index_ < 0 || static_cast<std::size_t>(parameter.index_) >= parameters.size()) {
    throw Error(Errc::invalid_argument,
                fmt::format("this parameter is not one of unit '{}'", name));
  }
  return static_cast<std::size_t>(parameter.index_);
}

std::int64_t UnitState::numel() const {
  return std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& each) { return sum + each.numel; });
}

}  // namespace acc::detail
