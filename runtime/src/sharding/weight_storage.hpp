#pragma once

#include "sharding/engine.hpp"
#include "sharding/flat_plan.hpp"
#include "sharding/shard_layout.hpp"

#include <memory>

namespace acc::sharding {

/// For which use a flat parameter that is freed will be gathered again.
enum class NextUse {
  backward,  ///< the backward of the same micro-step
  forward,   ///< a micro-step that comes before the optimizer's step
  unknown,   ///< perhaps none before the optimizer's step
};

/// What making the full parameter available took.
struct Gathering {
  bool gathers = false;         ///< it was sharded
  bool copies = false;          ///< and elements were moved
  bool over_secondary = false;  ///< among the ranks that share a secondary copy
};

/// The weights of one flat parameter in the compute dtype: this rank's own part, and the full
/// parameter while it is unsharded. Three placements, one interface:
/// - replicated: everybody owns all of it, as of what is ignored;
/// - resident: the full parameter stays in memory, one copy a host where the group shares gathered
///   memory; a shard is its slice of it. It is gathered after each step or, where it is persistent,
///   by its first use after a step;
/// - transient: only the shard stays, in host memory beside a GPU where parameters are offloaded;
///   the full parameter is gathered into a pooled buffer, from a secondary copy while there is one.
class WeightStorage {
 public:
  virtual ~WeightStorage() = default;

  /// The part of the flat parameter that this rank keeps up to date.
  [[nodiscard]] virtual Shard owned() const = 0;
  [[nodiscard]] virtual std::byte* own() const = 0;
  /// Whether `own()` is host memory beside a GPU.
  [[nodiscard]] virtual bool own_offloaded() const { return false; }
  /// Starts to make the full parameter available and says what that takes; `finish_unshard` returns
  /// it, valid until `reshard`. Collective, like `publish`.
  virtual Gathering begin_unshard() = 0;
  virtual const std::byte* finish_unshard() = 0;
  virtual void reshard(NextUse next) = 0;
  /// Says that `own()` has changed: the next unshard sees it on every rank.
  virtual void publish() = 0;
  /// Waits for what is under way, so that the memory may go.
  virtual void settle() = 0;
  /// Bytes that this rank keeps; shared memory counts its part.
  [[nodiscard]] virtual std::int64_t held_nbytes() const = 0;
};

std::unique_ptr<WeightStorage> make_weight_storage(Engine& engine, const FlatLayout& layout,
                                                   const FlatTraits& traits);

}  // namespace acc::sharding
