// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/context.hpp"
#include "sharding/flat_plan.hpp"
#include "sharding/pools.hpp"
#include "sharding/shard_layout.hpp"

#include <memory>

namespace acc::sharding {

/// The next use of a flat parameter that is being freed.
enum class NextUse {
  backward,  ///< the backward of the same micro-step
  forward,   ///< a later micro-step before the optimizer step
  unknown,   ///< possibly none before the optimizer step
};

/// The work that made the full parameter available, for the traffic report.
struct Gathering {
  bool gathers = false;         ///< the parameter was sharded
  bool copies = false;          ///< elements were copied
  bool over_secondary = false;  ///< gathered from a secondary copy, over its ranks
};

/// The weights of one flat parameter in the gathered dtype: the part that this rank owns, and the
/// full parameter while it is unsharded. Three implementations:
/// - replicated: every rank owns all of it (NO_SHARD, ignored parameters);
/// - resident: the full parameter stays in memory, with one copy per host if the group shares
///   gathered memory, and a shard is a slice of it. It is gathered after each step or, if it is
///   persistent, by its first use after a step;
/// - transient: only the shard stays in memory (in host memory or a file if parameters are
/// offloaded). The
///   full parameter is gathered into a pooled buffer, from a secondary copy if there is a valid
///   one.
/// All methods except the getters are called in the same order on all ranks.
class WeightStorage {
 public:
  virtual ~WeightStorage() = default;

  /// The part of the flat parameter that this rank updates.
  [[nodiscard]] virtual Shard owned() const = 0;
  /// Memory of that part, [owned().numel]; writable.
  [[nodiscard]] virtual std::byte* own() const = 0;
  /// True if `own()` is host memory next to a GPU.
  [[nodiscard]] virtual bool own_offloaded() const { return false; }
  /// Starts to make the full parameter available. Collective, like `publish`.
  virtual Gathering begin_unshard() = 0;
  /// Waits for the gather and returns the full parameter, valid until `reshard`.
  virtual const std::byte* finish_unshard() = 0;
  /// Gives the full parameter up. It must have been begun, but need not have been finished.
  virtual void reshard(NextUse next) = 0;
  /// Declares that `own()` has changed; the next unshard on any rank uses the new values.
  virtual void publish() = 0;
  /// Waits for collectives under way, so that the memory may be changed or freed.
  virtual void settle() = 0;
  /// After the groups were made anew: takes memory of them at the same addresses, with undefined
  /// content. Not gathered; what was under way is dropped. Collective.
  virtual void renew() = 0;
  /// True if `finish_unshard` always returns the same memory, which holds nothing else.
  [[nodiscard]] virtual bool keeps_address() const = 0;
  /// Bytes that this rank holds between uses; of shared memory its fraction.
  [[nodiscard]] virtual std::int64_t held_nbytes() const = 0;
};

/// Chooses the implementation for the strategy and the traits. Throws Error(config) if parameters
/// are to be offloaded by a strategy that does not shard them. context, pools, layout: outlive the
/// storage.
std::unique_ptr<WeightStorage> make_weight_storage(const Context& context, Pools& pools,
                                                   const FlatLayout& layout,
                                                   const FlatTraits& traits);

// The implementations behind make_weight_storage, one per file of storage/.
std::unique_ptr<WeightStorage> make_replicated(const Context& context, const FlatLayout& layout);
std::unique_ptr<WeightStorage> make_resident(const Context& context, GatherWindow& publications,
                                             const FlatLayout& layout, bool persistent);
std::unique_ptr<WeightStorage> make_transient(const Context& context, Pools& pools,
                                              const FlatLayout& layout);

}  // namespace acc::sharding
