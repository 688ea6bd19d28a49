// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/update_rules.hpp"
#include "optim/update.hpp"
#include "optim/whole_rules.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace acc::optim {

/// The update of a parameter by its owner.
struct OwnedTask {
  std::int64_t cost;
  Shape shape = {};
};

/// Divides tasks among ranks so that the largest sum of costs is small: in order of falling cost,
/// each goes to the rank with the smallest sum so far. Those of equal cost are in the order of
/// their shapes, so that each rank gets some of each shape: the ranks' states of one kind are
/// equally long. Returns the rank of each task. A pure function, so that all ranks know every
/// owner.
std::vector<int> assign_owners(std::span<const OwnedTask> tasks, int ranks);

/// One kind of state of the parameters of a window, each whole on the rank that owns it.
struct OwnedArray {
  std::string kind;
  sharding::FlatLayout layout;                     ///< a shard for each rank of the world
  std::vector<sharding::ParameterRecord> records;  ///< of the states, by their parameters' names
  sharding::Shard owned;                           ///< this rank's
  int shards = 1;            ///< 1: of ignored parameters, of which each rank has its own
  device::MemoryPtr values;  ///< [owned.numel] float32, memory of the updater
};

/// The update of parameters by a rule that needs each as a whole (matrices). The owner of one is
/// one rank of all, also of replicas. It computes the update alone, and keeps the states that are
/// not divided as the parameter is: every layout gives the same result.
///
/// A step, for some flat parameters at a time (a window):
/// 1. each rank computes the direction of its shard, element by element: the gradient, or Muon's
///    momentum, which is sharded as the parameters are;
/// 2. the directions are gathered. Ranks that share gathered memory see them where they are;
/// 3. each owner computes the updates of its parameters;
/// 4. each rank gets its shard of the results: in shared memory it is there; otherwise by a
///    reduce_scatter, in which all but the owner have zeros, and an all_reduce over replicas;
/// 5. each rank updates its shard, element by element.
class MatrixUpdate {
 public:
  struct Matrix {
    std::size_t index = 0;  ///< in its flat parameter
    std::size_t group = 0;  ///< of the optimizer
    Shape shape;
    bool is_matrix = true;                 ///< WholeParameter::is_matrix
    std::vector<Rule::OwnedState> states;  ///< the same number for all
  };
  struct Flat {
    sharding::FlatParameter* flat = nullptr;
    void* momentum = nullptr;  ///< of the direction, [owned().numel] in PrecisionPolicy::moments;
                               ///< of the updater. Null: it has no state
    std::vector<Matrix> matrices;
  };
  /// The rule of one step.
  struct Step {
    std::int64_t number = 0;  ///< counts from 1
    kernels::UpdateStep direction;
    const float* clip = nullptr;  ///< UpdateArrays::clip
    /// The rates of a group; the rest of WholeStep is filled in here.
    std::function<WholeStep(std::size_t group)> rates;
  };

  /// flats: the same on all ranks, each with at least one matrix. tile_numel: elements per rank of
  /// a window; 0: chosen here. Throws Error(not_supported) if the optimizer runs on a GPU.
  /// Collective. context, counters and flats outlive this.
  MatrixUpdate(const sharding::Context& context, sharding::Counters& counters,
               std::vector<Flat> flats, WholeRule rule, std::int64_t tile_numel);

  void run(const Step& step);
  /// After the groups were made anew: takes their memory at the same addresses, and clears the
  /// states. Collective.
  void renew();
  /// Bytes of memory that it holds between steps.
  [[nodiscard]] std::int64_t nbytes() const noexcept;
  /// The states that owners keep.
  [[nodiscard]] const std::vector<OwnedArray>& owned() const noexcept { return owned_; }

 private:
  /// A state of a matrix that this rank owns.
  struct Slot {
    std::size_t array = 0;  ///< in `owned_`
    std::int64_t begin = 0;
    std::int64_t numel = 0;  ///< 0: there is none
  };
  /// A flat parameter in a window.
  struct Place {
    std::size_t flat;                      ///< in `flats_`
    std::int64_t offset;                   ///< of its first element in the buffers
    std::vector<int> owners;               ///< by matrix; ranks of the world
    std::vector<std::vector<Slot>> slots;  ///< by matrix and state
    std::vector<double> squares;           ///< by matrix: sums of the squares of its weights
  };
  using Window = std::vector<Place>;
  struct Buffers {
    collectives::BufferPtr directions;  ///< gathered memory
    collectives::BufferPtr results;     ///< contribution; null if results stay in `directions`
  };

  void plan_windows(std::int64_t tile_numel);
  void allocate();
  /// Adds the arrays of the states of a window. ignored: of ignored parameters, or of the others.
  void allocate_states(Window& window, bool ignored);
  void allocate_state(Window& window, bool ignored, std::size_t state);
  void run_window(Window& window, Buffers& buffers, const Step& step);
  /// Computes `Place::squares` of a window from those of the shards, `own` by place and matrix.
  void sum_squares(Window& window, std::span<const double> own);
  /// Gives each rank its shards of the results of all owners.
  void send_back(const Window& window, float* results);
  [[nodiscard]] bool is_gathered(const Place& place) const;
  [[nodiscard]] std::int64_t shard_numel(const Place& place) const;
  /// Positions in the buffers: of this rank's shard of a flat parameter, and of all of it. An
  /// ignored one, of which each rank has a whole of its own, is in the place of its shard.
  [[nodiscard]] std::int64_t own_offset(const Place& place) const;
  [[nodiscard]] std::int64_t whole_offset(const Place& place) const;
  /// Adds the squares of this rank's weights of each matrix to `squares`, if the rule needs them.
  void compute_direction(const Place& place, float* to, const Step& step,
                         std::vector<double>& squares);
  void add_squares(const Place& place, float* scratch, std::vector<double>& squares);
  /// The updates of the matrices that this rank owns.
  void compute(const Place& place, float* directions, float* results, const Step& step);
  void compute(const Place& place, std::size_t matrix, float* values, const Step& step);
  void apply(const Place& place, const float* results, const Step& step);
  [[nodiscard]] WholeStep step_of(const Place& place, std::size_t matrix, const Step& step) const;
  [[nodiscard]] std::vector<device::UpdateRange> range_of(const Flat& flat,
                                                          const Matrix& matrix) const;

  const sharding::Context& context_;
  sharding::Counters& counters_;
  std::vector<Flat> flats_;
  WholeRule rule_;
  int shards_;     ///< size of the shard group
  bool in_place_;  ///< owners write results to gathered memory, where all see them
  std::vector<Window> windows_;
  std::int64_t window_numel_ = 0;  ///< of the largest window, with all shards
  std::vector<Buffers> buffers_;   ///< two, used in turn, if there are several windows
  std::vector<OwnedArray> owned_;
  // With an optimizer in host memory next to a GPU:
  device::MemoryPtr own_;     ///< this rank's directions or results
  device::MemoryPtr matrix_;  ///< a whole matrix
};

}  // namespace acc::optim
