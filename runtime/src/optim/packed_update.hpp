// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/packed_states.hpp"
#include "kernels/update_rules.hpp"
#include "optim/update.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_parameter.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace acc::optim {

/// The states of one flat parameter in 8 bits, and the update with them
/// (kernels/packed_states.hpp). Parameters of fewer than `min_8bit_size` elements have states in
/// float32. Blocks are counted from the first element of a parameter. The scale of one that lies in
/// several shards is a function of all its elements, and the ranks that have a part of it agree on
/// it in each step: every layout gives the same result.
class PackedStates {
 public:
  /// A state of the rule.
  struct State {
    std::string kind;  ///< its key, also in checkpoints
    bool is_signed = false;
  };
  /// groups: of the optimizer, by parameter. Throws Error(not_supported) if the optimizer runs on a
  /// GPU. context and flat outlive this.
  PackedStates(const sharding::Context& context, sharding::FlatParameter& flat,
               std::vector<State> states, std::vector<std::size_t> groups, std::int64_t min_numel);

  [[nodiscard]] std::span<const State> states() const noexcept { return states_; }
  /// Makes all states those before the first step.
  void clear();
  [[nodiscard]] std::int64_t nbytes() const;

  // --- the step
  /// updates: by group.
  struct Step {
    std::int64_t number = 0;  ///< counts from 1
    std::span<const kernels::UpdateStep> updates;
    const float* clip = nullptr;  ///< UpdateArrays::clip
  };
  /// True if a block lies in the shards of several ranks, on any rank: a pure function of the
  /// layout.
  [[nodiscard]] bool divides_blocks() const;
  /// Number of doubles by which a rank describes its parts of divided blocks; the same on all
  /// ranks.
  [[nodiscard]] std::size_t message_numel() const noexcept { return states_.size() * 2 * 2; }
  /// Writes the description of this rank's parts, after the coming step, to `message`.
  void measure(const Step& step, std::span<double> message);
  /// Makes the step. messages: `measure` of the ranks of the shard group, in their order; empty if
  /// no block is divided.
  void update(const Step& step, std::span<const std::span<const double>> messages);

  // --- for checkpoints: values in float32
  /// Reads elements [begin, begin + numel) of the shard; gaps are zeros.
  void read(std::size_t state, std::int64_t begin, std::int64_t numel, float* to) const;
  /// Elements [begin, begin + numel) of a parameter, at most `kPartNumel`, with complete blocks of
  /// the shard.
  struct Part {
    std::size_t parameter = 0;
    std::int64_t begin = 0;
    std::int64_t numel = 0;
    std::int64_t in_shard = 0;  ///< of the first of them
  };
  static constexpr std::int64_t kPartNumel = 1 << 16;
  /// Returns the parts of all of the shard.
  [[nodiscard]] std::vector<Part> parts() const;
  /// Sets a state; parts of divided blocks are kept until `finish`. values: [part.numel].
  void write(std::size_t state, const Part& part, const float* values);
  /// Describes the parts of divided blocks that were written, for `finish`.
  void describe_written(std::span<double> message) const;
  /// Ends a series of writes that set all states. messages: as in `update`.
  void finish(std::span<const std::span<const double>> messages);

 private:
  /// The part of a parameter in the shard.
  struct Piece {
    std::size_t parameter = 0;
    std::int64_t in_parameter = 0;
    std::int64_t in_shard = 0;
    std::int64_t numel = 0;
    bool packed = false;
    std::int64_t at = 0;      ///< of the first element, in codes or in float32 values
    std::int64_t scales = 0;  ///< of the first block
  };
  /// A block of a parameter of which a shard has a part.
  struct Block {
    std::size_t parameter = 0;
    std::int64_t number = 0;

    bool operator==(const Block&) const = default;
  };
  /// One state of all pieces.
  struct Values {
    device::MemoryPtr codes;
    device::MemoryPtr scales;
    device::MemoryPtr whole;  ///< float32, of the parameters that are not packed
  };

  [[nodiscard]] bool is_packed(std::size_t parameter) const;
  /// The divided blocks of a shard, in memory order: at most two.
  [[nodiscard]] std::vector<Block> divided_in(sharding::Shard shard) const;
  /// The divided blocks of this rank's shard.
  [[nodiscard]] std::span<const Block> own_divided() const;
  /// Elements [begin, end) of a parameter that a piece has.
  [[nodiscard]] kernels::PackedRange range(const Piece& piece, std::int64_t begin,
                                           std::int64_t end) const;
  /// The part of a divided block in this shard.
  [[nodiscard]] kernels::PackedRange part_of(const Block& block) const;
  using BlockExtremes = std::array<kernels::Extremes, kernels::kMostStates>;  ///< by state
  /// Returns the extremes of all parts of a divided block.
  [[nodiscard]] BlockExtremes extremes_of(const Block& block,
                                          std::span<const std::span<const double>> messages) const;
  [[nodiscard]] const kernels::UpdateStep& step_of(const Step& step, std::size_t parameter) const {
    return step.updates[groups_[parameter]];
  }
  void pack(std::size_t state, const kernels::PackedRange& range, const float* values, float scale);
  void update_whole(const Piece& piece, const Step& step, const device::UpdateArrays& all) const;

  const sharding::Context& context_;
  sharding::FlatParameter& flat_;
  std::vector<State> states_;
  std::vector<std::size_t> groups_;
  std::int64_t min_numel_;
  std::vector<Piece> pieces_;
  std::vector<Values> values_;  ///< by state
  std::array<bool, kernels::kMostStates> signed_{};
  /// By rank of the shard group; empty if every rank has the whole.
  std::vector<std::vector<Block>> divided_;
  /// Values that were written to this rank's parts of divided blocks, by block and state.
  std::vector<std::array<std::vector<float>, kernels::kMostStates>> written_;
};

/// Makes the step of all flat parameters, and calls `updated` after each. Collective.
void update_packed(const sharding::Context& context, std::span<PackedStates* const> flats,
                   const PackedStates::Step& step,
                   const std::function<void(std::size_t flat)>& updated);

/// Ends the writes to all flat parameters. Collective.
void finish_packed(const sharding::Context& context, std::span<PackedStates* const> flats);

}  // namespace acc::optim
