// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime.hpp"
#include "model/assembly.hpp"
#include "model/declaration.hpp"
#include "model/unit_state.hpp"
#include "model/use_order.hpp"
#include "sharding/late_copies.hpp"
#include "sharding/shard_unit.hpp"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace acc::detail {

/// State of a model. Two phases: until `finalize` the program declares units, parameters and
/// buffers; `finalize` then compares the declarations of all ranks, wraps, allocates and
/// initialises, and from then on the parameters live in sharded units. Owns the state that all
/// units share.
class ModelState {
 public:
  ModelState(const settings::RuntimeSettings& settings, sharding::Groups groups,
             const device::DevicePtr& device, std::shared_ptr<trace::Tracer> tracer,
             std::uint64_t seed, const ModelOptions& options);
  ~ModelState();

  Unit& add_unit(std::string name, std::string class_name, bool is_root);
  /// Ends the declaration phase; does nothing afterwards. Every use of the parameters calls it.
  /// Collective. If it fails, the model cannot be used.
  void finalize();
  /// After the groups were made anew: everything is as after `finalize`, at the same addresses. The
  /// ranks that are new call `finalize` meanwhile. Collective. identity, plan: of the new groups.
  void renew(const settings::WorkerIdentity& identity, const sharding::GroupPlan& plan);
  /// Throws Error(invalid_argument) inside a scope, Error(not_supported) for a model that cannot
  /// `renew`.
  void check_renew() const;
  /// False if `renew` does not restore all initial values, because initialisers may not be called
  /// again.
  [[nodiscard]] bool knows_initial_values() const;
  /// Implements `Unit::keeps_addresses`.
  [[nodiscard]] bool keeps_addresses(UnitState& unit);
  /// Throws Error(invalid_argument) after the declaration phase. what: the declaration, for the
  /// message.
  void check_open(const std::string& what) const;

  /// Scopes of a unit of the program. Each opens, in order, or closes, in reverse order, the
  /// sharded units that contain the unit's parameters, and starts the early gathers of the
  /// schedule. An early gather is issued after the scope's own gather, so it never delays that one.
  void before_forward(UnitState& unit);
  void after_forward(UnitState& unit);
  void before_recompute(UnitState& unit);
  void after_recompute(UnitState& unit);
  void before_backward(UnitState& unit);
  /// asked_gradient: the program asked for the gradient of a trained parameter in this scope.
  void after_backward(UnitState& unit, bool asked_gradient);
  /// Ends a scope because of an error, without collectives. The groups are aborted.
  void abandon(UnitState& unit);
  /// Checks that a step may be made. Inside a scope, or if this rank left out a backward or its
  /// gradients, it aborts the groups with the reason, so that no rank makes the step, and throws
  /// Error(invalid_argument). updates_all: the optimizer cannot leave out parameters.
  void check_step(bool updates_all) const;
  /// Names of the trained parameters that the step leaves as they are.
  [[nodiscard]] std::set<std::string> without_gradient() const;
  /// Factor that turns the reduced gradients into the mean over the micro-steps that were made, if
  /// these are fewer than gradient_accumulation_steps.
  [[nodiscard]] double mean_correction() const;
  /// Throws Error(invalid_argument) on all ranks if they have used the units in different orders
  /// since the last step. Returns true if `same` is equal on all ranks. Collective.
  bool check_order(double same);
  /// Brings every reduced gradient to the updater: reduces what no micro-step has reduced and waits
  /// for all reductions. Collective.
  void finish_reductions();
  /// This rank's parts of all parameters, or of the trained ones.
  [[nodiscard]] std::vector<ParameterShard> shards(bool trained_only);
  /// The trained ones, with their reduced gradients.
  [[nodiscard]] std::vector<ParameterShard> shards_with_gradients();
  /// Throws Error(not_supported) if master weights or gradients lie in a file, where the program
  /// cannot use them.
  void check_host_weights() const;
  /// Implement the functions of Model with these names. Collective.
  void take_gradients(const ShardsVisit& visit);
  void publish();
  /// Forgets gradients and scopes after a step.
  void after_step();
  /// Implements `Model::zero_grad`. Collective.
  void drop_gradients();
  /// To be called before the weights are replaced: a backward of an earlier forward is refused, as
  /// it would compute with other weights.
  void forget_forwards();

  [[nodiscard]] const std::vector<std::unique_ptr<sharding::ShardUnit>>& shard_units() const {
    return shard_units_;
  }
  /// All flat parameters, in a fixed order that is the same on every rank.
  [[nodiscard]] std::vector<sharding::FlatParameter*> flats() const;
  [[nodiscard]] const sharding::Context& context() const noexcept { return context_; }
  [[nodiscard]] sharding::Counters& counters() noexcept { return counters_; }
  [[nodiscard]] TrafficReport traffic() const;
  void reset_traffic();
  /// Seed of initial values and of stochastic rounding.
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// Sets the seed of stochastic rounding to that of the run that saved a checkpoint.
  void seed_noise(std::uint64_t seed);
  /// Implements `Model::share`.
  void share(const std::string& name, void* data, std::size_t nbytes);
  /// All buffers, in the order of units.
  [[nodiscard]] std::vector<model::BufferRecord*> buffers();
  [[nodiscard]] bool last_micro_step() const;
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] MemoryReport memory() const;
  /// Bytes of moments, set by the optimizer for `memory()`.
  std::int64_t optimizer_nbytes = 0;
  /// Host memory for the values of a save that is written beside the training; null before the
  /// first.
  device::MemoryPtr snapshot_memory;
  /// Host memory for snapshots in memory, the launcher's too; 0 before the first.
  std::int64_t memory_snapshot_nbytes = 0;
  sharding::LateCopies late_copies;       ///< of weights, moments
  bool has_optimizer = false;             ///< a model has at most one optimizer at a time
  std::function<void()> renew_optimizer;  ///< collective; set by the optimizer
  std::size_t declared_parameters = 0;    ///< number of parameters declared so far, in all units

 private:
  /// Descriptions of all mistakes that `check_step` refuses.
  [[nodiscard]] std::vector<std::string> mistakes(bool updates_all) const;
  void add_missing_gradients(const UnitState& unit, std::vector<std::string>& found) const;
  /// Everything that all ranks must declare alike.
  [[nodiscard]] model::Declaration declaration() const;
  /// Plans the sharded units, and marks ignored parameters and buffers.
  [[nodiscard]] model::Assembly plan_units();
  /// Throws Error(invalid_argument) if two parameters or buffers have the same full name.
  void check_names() const;
  /// Marks the parameters that stay gathered.
  void mark_persistent();
  void make_units(const model::Assembly& plan);
  /// Tells the pools the usual size of a gather.
  void size_pools();
  /// known: of sharding::initialize.
  void initialize(bool known);
  [[nodiscard]] std::vector<sharding::ParameterRecord> records_of(
      const model::UnitPlan& unit) const;
  [[nodiscard]] sharding::ShardUnit& sharded(int number) const {
    return *shard_units_[static_cast<std::size_t>(number)];
  }
  void prefetch(const std::vector<int>& units);
  /// Open the sharded units of a scope, or close them in reverse order. If one fails, the scope is
  /// closed.
  using Open = sharding::ShardUnit::Early (sharding::ShardUnit::*)();
  void open(const UnitState& unit, Open each);
  void close(const UnitState& unit, const std::function<void(sharding::ShardUnit&)>& each);

  sharding::Context context_;  ///< changes in `renew` only
  sharding::Pools pools_{context_};
  sharding::Counters counters_;
  collectives::SentBytes sent_before_;  ///< by the groups, before the last `reset_traffic`
  sharding::Schedule schedule_;         ///< of all units
  model::UseOrder order_;
  const std::uint64_t declared_seed_;
  std::uint64_t seed_;
  ModelOptions options_;
  std::vector<std::pair<void*, std::size_t>> shared_;  ///< memory and bytes of `share`
  bool finalized_ = false;                             ///< the declaration phase has ended
  bool ready_ = false;  ///< `finalize` has succeeded; false while finalized_: it failed
  std::vector<std::unique_ptr<UnitState>> unit_states_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<sharding::ShardUnit>> shard_units_;
};

}  // namespace acc::detail
