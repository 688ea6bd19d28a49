// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/flat_parameter.hpp"
#include "sharding/schedule.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace acc::sharding {

/// A sharded unit: flat parameters that are gathered, freed and reduced together. It holds the
/// parameters of one unit of the program, or of several that the wrap policy combines. It
/// reduces gradients when no forward awaits its backward. That is only the usual
/// time: a later backward before the step (a graph that is retained, a forward that a backward
/// computes for the first time) is reduced again and added.
///
/// Life cycle of a micro-step with reshard_after_forward:
///
///     before_forward    gather
///     after_forward     free
///     before_backward   gather
///     after_backward    reduce gradients, free
///
/// Weights stay gathered between scopes if the schedule keeps them; `hide` then only ends the
/// program's access. The methods issue collectives, so all ranks call them in the same order.
class ShardUnit {
 public:
  /// Registers the unit with the schedule. The first four arguments outlive it.
  ShardUnit(const Context& context, Pools& pools, Counters& counters, Schedule& schedule,
            const std::string& name, bool is_root, const std::vector<ParameterRecord>& parameters);

  /// Position of parameter `index`, in the order given to the constructor.
  struct Place {
    FlatParameter* flat;
    std::size_t index;
  };
  [[nodiscard]] Place place(std::size_t index) const { return places_[index]; }

  /// Throw Error(invalid_argument) if the scope must not begin. A scope that opens several units
  /// checks all of them before it opens one, so that a refused scope opens none. autograd: of
  /// ModelOptions, a forward may have several backwards.
  void check_forward() const;
  void check_backward(const char* scope, bool autograd) const;
  /// Scopes. They return the numbers of the units that should be gathered early.
  using Early = std::vector<int>;
  Early before_forward();
  void after_forward();
  /// A forward that is computed for the backward; `before_backward` begins that one.
  Early before_recompute();
  void after_recompute();
  Early before_backward();
  Early after_backward();
  /// Ends a scope in which a collective has failed, without any other.
  void abandon();
  /// Starts the gather early; the next `before_…` only waits for it.
  void prefetch();

  /// The parameter and the memory of its gradient: [numel] in the view dtype. Only within a scope.
  const void* parameter(std::size_t index);
  FlatGradient::Target gradient(std::size_t index);
  /// Implements `UnitState::set_requires_grad`.
  void want_gradient(std::size_t index, bool wanted);
  /// Implements `Unit::hold_gradients` for a parameter.
  void hold_gradient(std::size_t index, bool held);

  /// Before a step: reduces the gradients that no completed micro-step has reduced, and frees the
  /// weights.
  void flush();
  /// After a step: forgets gradients.
  void after_step();
  /// Drops the gradients since the last step, after their reductions. Forwards still await their
  /// backwards. Not inside a scope.
  void drop_gradients();
  /// Frees weights that are gathered without an open scope, before `what` changes them. Throws
  /// Error(invalid_argument) inside a scope.
  void release(const char* what);
  /// As WeightStorage::renew, for all flat parameters. Not inside a scope. Collective.
  void renew();
  /// True inside a scope of the program.
  [[nodiscard]] bool is_open() const noexcept { return open_ > 0; }
  [[nodiscard]] const UnitUses& uses() const { return schedule_.uses(number_); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool is_root() const noexcept { return is_root_; }
  /// The unit's number in the schedule.
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] const std::vector<std::unique_ptr<FlatParameter>>& flats() const noexcept {
    return flats_;
  }

 private:
  void begin_unshard();
  void unshard();
  void reshard(NextUse next);
  /// Ends the program's access after the last open scope; the weights stay gathered.
  void hide();
  void check_closed(const char* what) const;
  void prepare_gradients();
  void close_gradients();
  void for_each_gradient(const std::function<void(FlatGradient&)>& visit);
  /// Begins a scope: gathers the weights and records the scope in flight record and trace.
  void open(const char* phase);
  void leave(const char* phase);
  void trace_end();

  const Context& context_;
  Pools& pools_;
  const Counters& counters_;
  Schedule& schedule_;
  std::string name_;
  bool is_root_;
  int number_ = -1;
  std::vector<std::unique_ptr<FlatParameter>> flats_;
  std::vector<Place> places_;
  int open_ = 0;           ///< open scopes
  bool prepared_ = false;  ///< `prepare_gradients` in the last backward
};

}  // namespace acc::sharding
