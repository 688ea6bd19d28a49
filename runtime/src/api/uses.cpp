// SPDX-License-Identifier: Apache-2.0
// Scopes of units. A scope object only knows its unit; the model opens and closes the sharded units
// behind it. `unit_` is null after `end` and after a move, so each scope ends exactly once. Access
// to a parameter leads from the handle, checked by the unit, to the sharded unit that stores it.
#include "acc/runtime.hpp"
#include "api/mine.hpp"
#include "model/model_state.hpp"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace acc {

using sharding::guarded;

namespace {

/// Ends a scope from its destructor. exceptions: number of uncaught exceptions when the scope
/// began. If there are more now, an exception is ending the scope: the collectives that it should
/// issue would wait for ranks that continue, so the groups are aborted instead, and the peers fail
/// with this reason. A destructor cannot throw; an error of `end` aborts the groups, so the next
/// call reports it.
template <typename Use>
void close_scope(Use& use, detail::UnitState* unit, int exceptions) noexcept {
  if (unit == nullptr) {
    return;
  }
  const auto& groups = unit->model->context().groups;
  if (!groups.owner.is_current()) {
    return;  // the scope is the parent's
  }
  if (std::uncaught_exceptions() > exceptions) {
    groups.abort(fmt::format("rank {} left a scope of unit '{}' because of an error in the program",
                             unit->model->context().settings.identity.rank, unit->label),
                 Errc::peer_lost);
    unit->model->abandon(*unit);
    return;
  }
  try {
    use.end();
  } catch (const Error& error) {
    groups.abort(error.what(), error.code());
  } catch (const std::exception& error) {
    groups.abort(error.what());
  }
}

/// Returns the unit of an open scope. Throws Error(invalid_argument) after its end or a move.
detail::UnitState& opened(detail::UnitState* unit) {
  if (unit == nullptr) {
    throw Error(Errc::invalid_argument, "this scope of a unit has ended");
  }
  return mine(unit);
}

void check_view_is_float(const detail::UnitState& unit, Parameter parameter) {
  const DType dtype = unit.record(parameter).precision.viewed;
  if (dtype != DType::float32) {
    throw Error(Errc::invalid_argument,
                fmt::format("unit '{}' has a parameter in {}: get it with raw()", unit.label,
                            to_string(dtype)));
  }
}

}  // namespace

ForwardUse::ForwardUse(detail::UnitState* unit, bool recomputes)
    : unit_(unit), recomputes_(recomputes), exceptions_(std::uncaught_exceptions()) {
  detail::ModelState& model = *unit_->model;
  guarded(model.context().groups,
          [&] { recomputes_ ? model.before_recompute(*unit_) : model.before_forward(*unit_); });
}

ForwardUse::ForwardUse(ForwardUse&& other) noexcept
    : unit_(std::exchange(other.unit_, nullptr)),
      recomputes_(other.recomputes_),
      exceptions_(other.exceptions_) {}

ForwardUse::~ForwardUse() {
  close_scope(*this, unit_, exceptions_);
}

void ForwardUse::end() {
  if (auto* unit = std::exchange(unit_, nullptr)) {
    detail::ModelState& model = *unit->model;
    guarded(model.context().groups,
            [&] { recomputes_ ? model.after_recompute(*unit) : model.after_forward(*unit); });
  }
}

const float* ForwardUse::operator[](Parameter parameter) const {
  check_view_is_float(opened(unit_), parameter);
  return static_cast<const float*>(raw(parameter));
}

const void* ForwardUse::raw(Parameter parameter) const {
  const auto& place = opened(unit_).place(parameter);
  return place.owner->parameter(place.index);
}

BackwardUse::BackwardUse(detail::UnitState* unit)
    : unit_(unit), exceptions_(std::uncaught_exceptions()) {
  guarded(unit_->model->context().groups, [&] { unit_->model->before_backward(*unit_); });
}

BackwardUse::BackwardUse(BackwardUse&& other) noexcept
    : unit_(std::exchange(other.unit_, nullptr)),
      exceptions_(other.exceptions_),
      asked_gradient_(other.asked_gradient_) {}

BackwardUse::~BackwardUse() {
  close_scope(*this, unit_, exceptions_);
}

void BackwardUse::end() {
  if (auto* unit = std::exchange(unit_, nullptr)) {
    guarded(unit->model->context().groups,
            [&] { unit->model->after_backward(*unit, asked_gradient_); });
  }
}

const float* BackwardUse::operator[](Parameter parameter) const {
  check_view_is_float(opened(unit_), parameter);
  return static_cast<const float*>(raw(parameter));
}

const void* BackwardUse::raw(Parameter parameter) const {
  const auto& place = opened(unit_).place(parameter);
  return place.owner->parameter(place.index);
}

Gradient BackwardUse::grad(Parameter parameter) {
  check_view_is_float(opened(unit_), parameter);
  const RawGradient place = raw_grad(parameter);
  return {.data = static_cast<float*>(place.data), .beta = place.beta};
}

float* BackwardUse::grad_to_add(Parameter parameter) {
  check_view_is_float(opened(unit_), parameter);
  return static_cast<float*>(raw_grad_to_add(parameter));
}

RawGradient BackwardUse::raw_grad(Parameter parameter) {
  const auto& place = opened(unit_).place(parameter);
  const auto target =
      guarded(unit_->model->context().groups, [&] { return place.owner->gradient(place.index); });
  asked_gradient_ = asked_gradient_ || target.data != nullptr;
  return {.data = target.data, .beta = target.written ? 1.0F : 0.0F};
}

/// Fills only this parameter with zeros, in the order of the compute stream: the memory may come
/// from a pool and contain another unit's gradients.
void* BackwardUse::raw_grad_to_add(Parameter parameter) {
  const auto& place = opened(unit_).place(parameter);
  const auto target =
      guarded(unit_->model->context().groups, [&] { return place.owner->gradient(place.index); });
  asked_gradient_ = asked_gradient_ || target.data != nullptr;
  if (target.data != nullptr && !target.written) {
    const sharding::ParameterRecord& record = unit_->record(parameter);
    device::Device& device = *unit_->model->context().device;
    device.zero(target.data,
                static_cast<std::size_t>(record.numel) * nbytes_of(record.precision.viewed),
                device.compute());
  }
  return target.data;
}

}  // namespace acc
