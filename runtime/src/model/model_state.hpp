#pragma once

#include "acc/runtime.hpp"
#include "sharding/shard_unit.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::detail {

/// A unit as the program declared it; after `ModelState::finalize` its parameters live in `owner`.
class UnitState {
 public:
  UnitState(ModelState* in_model, std::string unit_name, std::string unit_class, bool root)
      : model(in_model),
        name(std::move(unit_name)),
        class_name(std::move(unit_class)),
        is_root(root) {}

  Parameter add(std::string parameter_name, Shape shape, Initializer initializer,
                ParameterOptions options);
  void tie(std::string alias, Parameter parameter);
  [[nodiscard]] std::size_t owner_index(Parameter parameter) const;
  [[nodiscard]] std::int64_t numel() const;

  ModelState* model;
  std::string name;
  std::string class_name;
  bool is_root;
  std::vector<sharding::ParameterRecord> parameters;
  sharding::ShardUnit* owner = nullptr;
  std::size_t first_in_owner = 0;
};

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
  [[nodiscard]] bool finalized() const noexcept { return finalized_; }
  void check_open(const std::string& what) const;

  void before_forward(UnitState& unit);
  void after_forward(UnitState& unit);
  void before_recompute(UnitState& unit);
  void after_recompute(UnitState& unit);
  void before_backward(UnitState& unit);
  void after_backward(UnitState& unit);

  [[nodiscard]] const std::vector<std::unique_ptr<sharding::ShardUnit>>& shard_units() const {
    return shard_units_;
  }
  /// All flat parameters, in a fixed order that is the same on every rank.
  [[nodiscard]] std::vector<sharding::FlatParameter*> flats() const;
  [[nodiscard]] sharding::Engine& engine() noexcept { return engine_; }
  [[nodiscard]] bool last_micro_step() const;
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] MemoryReport memory() const;
  /// Said by the optimizer, so that `memory()` knows.
  std::int64_t optimizer_nbytes = 0;

 private:
  /// For each declared unit whether it is sharded by itself; checks that names are unique.
  [[nodiscard]] std::vector<bool> wrap_units() const;
  /// Which parameters stay gathered from step to step.
  void mark_persistent();
  void make_pools();
  void make_root(const std::vector<bool>& own);
  void prefetch(const std::vector<int>& units);

  sharding::Engine engine_;
  std::uint64_t seed_;
  bool finalized_ = false;
  std::vector<std::unique_ptr<UnitState>> unit_states_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<sharding::ShardUnit>> shard_units_;
};

}  // namespace acc::detail
