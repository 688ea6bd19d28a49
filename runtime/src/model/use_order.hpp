// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace acc::model {

/// True for each value that is the same on all ranks. At most 4 values. Collective over `world`.
std::vector<bool> alike(collectives::ProcessGroup& world, std::initializer_list<double> values);

/// The order in which this rank used the units since the last step. Collectives of units are
/// matched by their order, and those of units of equal size cannot be told apart: ranks with
/// different orders would add the gradients of different units.
class UseOrder {
 public:
  enum class Event : std::uint8_t { begins_forward, begins_backward, ends_backward };

  /// unit: index that is the same on all ranks.
  void add(int unit, Event event);
  void clear() noexcept;
  /// The gradients since the last step are dropped.
  void drop() noexcept;
  /// Equal on two ranks with the same order.
  [[nodiscard]] std::uint32_t hash() const noexcept { return hash_; }
  /// A text about the first difference between ranks with different hashes, the same on all of
  /// them. name_of: returns the name of a unit. Collective over `world`.
  [[nodiscard]] std::string difference(collectives::ProcessGroup& world,
                                       const std::function<std::string(int)>& name_of) const;

 private:
  /// Numbers of events from 1; 0 stands for "nothing more".
  [[nodiscard]] std::int64_t at(std::size_t number) const noexcept {
    return number < events_.size() ? events_[number] : 0;
  }

  std::vector<std::int64_t> events_;
  void add_to_hash(std::uint64_t value) noexcept;

  std::uint32_t hash_ = 0;  ///< of all events since the last step; of `events_` if none was dropped
};

}  // namespace acc::model
