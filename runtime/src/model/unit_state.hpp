#pragma once

#include "acc/runtime.hpp"
#include "model/buffers.hpp"
#include "sharding/shard_unit.hpp"

#include <string>
#include <vector>

namespace acc::detail {

/// A unit as the program declared it; after `ModelState::finalize` its parameters live in sharded
/// units.
class UnitState {
 public:
  UnitState(ModelState* in_model, std::string unit_name, std::string unit_class, bool root);
  ~UnitState();
  UnitState(const UnitState&) = delete;
  UnitState& operator=(const UnitState&) = delete;

  Parameter add(std::string parameter_name, Shape shape, Initializer initializer,
                ParameterOptions options);
  void tie(std::string alias, Parameter parameter);
  Buffer add_buffer(std::string buffer_name, Shape shape, Initializer initializer);

  [[nodiscard]] const sharding::ParameterRecord& record(Parameter parameter) const;
  /// In which sharded unit a parameter lives, and as which of its parameters.
  struct Place {
    sharding::ShardUnit* owner;
    std::size_t index;
  };
  [[nodiscard]] const Place& place(Parameter parameter) const;
  [[nodiscard]] acc::model::BufferRecord& buffer(Buffer handle);
  [[nodiscard]] std::int64_t numel() const;
  /// True if it has a parameter that is trained.
  [[nodiscard]] bool trains() const;

  ModelState* model;
  std::string name;
  std::string class_name;
  bool is_root;
  std::vector<sharding::ParameterRecord> parameters;
  std::vector<acc::model::BufferRecord> buffers;
  std::vector<Place> places;  ///< of the parameters; from `finalize` on
  std::vector<int> owners;    ///< numbers of the sharded units that its scopes open, in this order

  /// Scopes since the last step that had gradients enabled; recomputations do not count.
  struct Uses {
    int forwards = 0;
    int backwards = 0;
    int backwards_without_gradient = 0;  ///< in which no gradient was asked for
  };
  Uses uses;

 private:
  [[nodiscard]] std::string full_name(const std::string& in_unit) const;
  [[nodiscard]] std::size_t checked(Parameter parameter) const;
  [[nodiscard]] std::size_t checked(Buffer buffer) const;

  std::int32_t number_;  ///< in every handle that it gives out; unique in the process
};

}  // namespace acc::detail
