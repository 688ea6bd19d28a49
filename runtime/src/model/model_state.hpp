#pragma once

#include "acc/runtime.hpp"
#include "model/assembly.hpp"
#include "model/declaration.hpp"
#include "model/unit_state.hpp"
#include "sharding/shard_unit.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::detail {

/// The model of a program: declared units first, then, from `finalize` on, what is sharded.
class ModelState {
 public:
  ModelState(const plugins::RuntimeSettings& settings, sharding::Groups groups,
             device::DevicePtr device, std::shared_ptr<trace::Tracer> tracer, std::uint64_t seed,
             const ModelOptions& options);
  ~ModelState();

  Unit& add_unit(std::string name, std::string class_name, bool is_root);
  /// Wraps, allocates and initialises, once; every use of the parameters calls it. Collective.
  void finalize();
  void check_open(const std::string& what) const;

  void before_forward(UnitState& unit);
  void after_forward(UnitState& unit);
  void before_recompute(UnitState& unit);
  void after_recompute(UnitState& unit);
  void before_backward(UnitState& unit);
  /// asked_gradient: the scope asked for the gradient of a trained parameter.
  void after_backward(UnitState& unit, bool asked_gradient);
  /// Refuses a step inside a scope, and one for which this rank forgot a backward or its gradients:
  /// ends the groups with the reason, so that no rank makes the step, and throws
  /// Error(invalid_argument).
  void check_step() const;
  /// After a step: forgets gradients and scopes.
  void after_step();

  [[nodiscard]] const std::vector<std::unique_ptr<sharding::ShardUnit>>& shard_units() const {
    return shard_units_;
  }
  /// All flat parameters, in a fixed order that is the same on every rank.
  [[nodiscard]] std::vector<sharding::FlatParameter*> flats() const;
  [[nodiscard]] sharding::Engine& engine() noexcept { return engine_; }
  /// Of the initial values and of what is rounded by chance.
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// What is rounded by chance goes on as in a run of that seed.
  void seed_noise(std::uint64_t seed);
  /// All buffers, unit by unit.
  [[nodiscard]] std::vector<model::BufferRecord*> buffers();
  [[nodiscard]] bool last_micro_step() const;
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] MemoryReport memory() const;
  /// Said by the optimizer, so that `memory()` knows.
  std::int64_t optimizer_nbytes = 0;
  bool has_optimizer = false;  ///< there is one at a time

 private:
  /// Each mistake that `check_step` refuses, in words.
  [[nodiscard]] std::vector<std::string> mistakes() const;
  /// All that the ranks must declare alike.
  [[nodiscard]] model::Declaration declaration() const;
  /// Which sharded units the declared ones become; checks that names are unique.
  [[nodiscard]] model::Assembly plan_units();
  void check_names() const;
  /// Which parameters stay gathered from step to step.
  void mark_persistent();
  void make_units(const model::Assembly& plan);
  void make_pools();
  void initialize();
  [[nodiscard]] std::vector<sharding::ParameterRecord> records_of(
      const model::UnitPlan& unit) const;
  [[nodiscard]] sharding::ShardUnit& sharded(int number) const {
    return *shard_units_[static_cast<std::size_t>(number)];
  }
  void prefetch(const std::vector<int>& units);

  sharding::Engine engine_;
  std::uint64_t seed_;
  ModelOptions options_;
  bool finalized_ = false;
  bool ready_ = false;  ///< all of it is made; false once finalized: that failed
  std::vector<std::unique_ptr<UnitState>> unit_states_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<sharding::ShardUnit>> shard_units_;
};

}  // namespace acc::detail
