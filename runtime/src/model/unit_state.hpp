// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime.hpp"
#include "model/buffers.hpp"
#include "sharding/shard_unit.hpp"

#include <string>
#include <vector>

namespace acc::detail {

/// A unit as the program declared it. After `ModelState::finalize` its parameters are stored in
/// sharded units, not necessarily in one.
class UnitState {
 public:
  /// unit_index: number of the unit in its model, the same on every rank.
  UnitState(ModelState* in_model, int unit_index, std::string unit_name, std::string unit_class,
            bool root);
  ~UnitState();
  UnitState(const UnitState&) = delete;
  UnitState& operator=(const UnitState&) = delete;

  Parameter add(std::string parameter_name, Shape shape, Initializer initializer,
                ParameterOptions options);
  void tie(std::string alias, Parameter parameter);
  Buffer add_buffer(std::string buffer_name, Shape shape, Initializer initializer, DType dtype);
  void tie(std::string alias, Buffer buffer);

  [[nodiscard]] const sharding::ParameterRecord& record(Parameter parameter) const;
  /// The sharded unit that stores a parameter, and the parameter's index there.
  struct Place {
    sharding::ShardUnit* owner;
    std::size_t index;
  };
  [[nodiscard]] const Place& place(Parameter parameter) const;
  [[nodiscard]] acc::model::BufferRecord& buffer(Buffer handle);
  [[nodiscard]] std::int64_t numel() const;
  /// True if the unit has a trained parameter.
  [[nodiscard]] bool trains() const;

  /// Implements `Unit::set_requires_grad`.
  void set_requires_grad(Parameter parameter, bool requires_grad);
  /// Implements `Unit::hold_gradients`.
  void hold_gradients(bool held);
  /// A backward begins: it wants the gradients of the parameters that require one.
  void want_gradients();
  /// Full names of trained parameters that did not require a gradient in any backward since the
  /// last step.
  [[nodiscard]] std::vector<std::string> without_gradient() const;
  /// Starts the next step.
  void clear_requirements();

  ModelState* model;
  int index;
  std::string name;
  std::string label;  ///< `name` in messages (sharding::unit_label)
  std::string class_name;
  bool is_root;
  std::vector<sharding::ParameterRecord> parameters;
  std::vector<acc::model::BufferRecord> buffers;
  std::vector<Place> places;  ///< by parameter; set by `finalize`
  std::vector<int> owners;    ///< sharded units that its scopes open, in this order; by `finalize`

  sharding::UnitUses uses;

 private:
  /// `requires_grad` of a parameter, which the program may change between steps.
  struct Requirement {
    bool now = true;
    bool paused = false;  ///< it was false at some time since the last step
    bool wanted = false;  ///< it was true in a backward since the last step
  };
  /// With `ModelOptions::by_rows`: a parameter that was declared frozen may be trained later, and
  /// nothing is reduced while it does not require a gradient. Collective.
  void want_gradient(std::size_t position, bool wanted);
  bool held_ = false;
  std::vector<Requirement> requirements_;  ///< by parameter; empty: never changed
  [[nodiscard]] std::string full_name(const std::string& in_unit) const;
  [[nodiscard]] std::size_t checked(Parameter parameter) const;
  [[nodiscard]] std::size_t checked(Buffer buffer) const;

  std::int32_t number_;  ///< part of every handle that the unit returns; unique in the process
};

}  // namespace acc::detail
