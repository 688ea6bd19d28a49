// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/update_rules.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace acc::optim {

/// Divides tasks among ranks so that the largest sum of costs is small: in order of falling cost,
/// each goes to the rank with the smallest sum so far. Returns the rank of each task. A pure
/// function, so that all ranks know every owner.
std::vector<int> assign_owners(std::span<const std::int64_t> costs, int ranks);

/// The update of parameters that are matrices, by a rule that needs each as a whole (Muon). The
/// owner of a matrix is one rank of all, also of replicas, and computes its update alone: every
/// layout gives the same result.
///
/// A step, for some flat parameters at a time (a window):
/// 1. each rank computes the direction of its shard, element by element, and updates the momentum,
///    which is sharded as the parameters are;
/// 2. the directions are gathered. Ranks that share gathered memory see them where they are;
/// 3. each owner orthogonalizes its matrices;
/// 4. each rank gets its shard of the results: in shared memory it is there; otherwise by a
///    reduce_scatter, in which all but the owner have zeros, and an all_reduce over replicas;
/// 5. each rank updates its shard, element by element.
class MatrixUpdate {
 public:
  struct Matrix {
    std::size_t index = 0;  ///< in its flat parameter
    std::size_t group = 0;  ///< of the optimizer
    std::int64_t rows = 0;
    std::int64_t columns = 0;
  };
  struct Flat {
    sharding::FlatParameter* flat = nullptr;
    void* momentum = nullptr;  ///< [owned().numel] in PrecisionPolicy::moments; of the updater
    std::vector<Matrix> matrices;
  };
  /// The rule of one step.
  struct Step {
    std::int64_t number = 0;  ///< counts from 1
    kernels::UpdateStep direction;
    const float* clip = nullptr;  ///< UpdateArrays::clip
    /// The update of a matrix with its orthogonalized direction as the gradient.
    std::function<kernels::UpdateStep(const Matrix& matrix)> apply;
  };

  /// flats: the same on all ranks, each with at least one matrix. iterations: of
  /// kernels::orthogonalize. tile_numel: elements per rank of a window; 0: chosen here. Throws
  /// Error(not_supported) if the optimizer runs on a GPU. Collective. context, counters and flats
  /// outlive this.
  MatrixUpdate(const sharding::Context& context, sharding::Counters& counters,
               std::vector<Flat> flats, int iterations, float eps, std::int64_t tile_numel);

  void run(const Step& step);
  /// Bytes that it holds between steps.
  /// After the groups were made anew: takes their memory at the same addresses. Collective.
  void renew();
  [[nodiscard]] std::int64_t nbytes() const noexcept;

 private:
  /// A flat parameter in a window.
  struct Place {
    std::size_t flat;         ///< in `flats_`
    std::int64_t offset;      ///< of its first element in the buffers
    std::vector<int> owners;  ///< by matrix; ranks of the world
  };
  using Window = std::vector<Place>;
  struct Buffers {
    collectives::BufferPtr directions;  ///< gathered memory
    collectives::BufferPtr results;     ///< contribution; null if results stay in `directions`
  };

  void plan_windows(int iterations, std::int64_t tile_numel);
  void allocate();
  void run_window(const Window& window, Buffers& buffers, const Step& step);
  /// Gives each rank its shards of the results of all owners.
  void send_back(const Window& window, float* results);
  [[nodiscard]] bool is_gathered(const Place& place) const;
  [[nodiscard]] std::int64_t shard_numel(const Place& place) const;
  /// Positions in the buffers: of this rank's shard of a flat parameter, and of all of it. An
  /// ignored one, of which each rank has a whole of its own, is in the place of its shard.
  [[nodiscard]] std::int64_t own_offset(const Place& place) const;
  [[nodiscard]] std::int64_t whole_offset(const Place& place) const;
  void compute_direction(const Place& place, float* to, const Step& step);
  void orthogonalize(const Place& place, float* directions, float* results);
  void apply(const Place& place, const float* results, const Step& step);
  [[nodiscard]] std::vector<device::UpdateRange> range_of(const Flat& flat,
                                                          const Matrix& matrix) const;

  const sharding::Context& context_;
  sharding::Counters& counters_;
  std::vector<Flat> flats_;
  int iterations_;
  float eps_;
  int shards_;     ///< size of the shard group
  bool in_place_;  ///< owners write results to gathered memory, where all see them
  std::vector<Window> windows_;
  std::int64_t window_numel_ = 0;  ///< of the largest window, with all shards
  std::vector<Buffers> buffers_;   ///< two, used in turn, if there are several windows
  // With an optimizer in host memory next to a GPU:
  device::MemoryPtr own_;     ///< this rank's directions or results
  device::MemoryPtr matrix_;  ///< a whole matrix
};

}  // namespace acc::optim
