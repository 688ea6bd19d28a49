// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/update_rules.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_parameter.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace acc::optim {

/// The update of parameters whose step depends on norms of the whole parameter (LAMB): computes the
/// direction of a shard element by element, the norms of weights and direction over all shards, and
/// then the update. Each flat parameter in turn, so that one direction is in memory.
class NormUpdate {
 public:
  struct Flat {
    sharding::FlatParameter* flat = nullptr;
    std::vector<void*> states;        ///< of the rule, each [owned().numel]; of the updater
    std::vector<std::size_t> groups;  ///< of the optimizer, by parameter
  };
  /// The rule of one step.
  struct Step {
    std::int64_t number = 0;      ///< counts from 1
    const float* clip = nullptr;  ///< UpdateArrays::clip
    std::function<kernels::UpdateStep(std::size_t group)> direction;
    std::function<kernels::UpdateStep(std::size_t group, double weight_norm, double direction_norm)>
        apply;
  };

  /// flats: the same on all ranks. context and flats outlive this.
  NormUpdate(const sharding::Context& context, std::vector<Flat> flats);

  /// Updates flat parameter number `index`. Collective.
  void run(std::size_t index, const Step& step);
  /// Bytes that it holds between steps.
  [[nodiscard]] std::int64_t nbytes() const noexcept {
    return static_cast<std::int64_t>(direction_->nbytes());
  }

 private:
  /// Returns the squares of the norms of weights and direction of each parameter, two numbers each,
  /// from those of this rank's shard in `squares_`.
  std::vector<double> squares_of_all(const sharding::FlatParameter& flat);

  const sharding::Context& context_;
  std::vector<Flat> flats_;
  device::MemoryPtr direction_;     ///< [owned numel] float32 of the updater
  device::MemoryPtr squares_;       ///< doubles of the updater
  device::MemoryPtr squares_here_;  ///< their copy in host memory
};

}  // namespace acc::optim
