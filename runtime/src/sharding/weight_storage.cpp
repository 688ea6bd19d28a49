#include "sharding/weight_storage.hpp"

#include "acc/base/error.hpp"
#include "sharding/storage/placements.hpp"

namespace acc::sharding {

std::unique_ptr<WeightStorage> make_weight_storage(Engine& engine, const FlatLayout& layout,
                                                   const FlatTraits& traits) {
  if (engine.offload_param && !engine.on.shard_parameters) {
    throw Error(Errc::config,
                "offload of parameters needs a strategy that shards them (FULL_SHARD, "
                "SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2, ZeRO 3)");
  }
  if (!engine.on.shard_optimizer || traits.ignored) {
    return make_replicated(engine, layout);
  }
  // In memory that the ranks share, a rank writes its slice of the full parameter and the others
  // see it: keeping the full parameter costs no more memory than the shards.
  const bool shard_is_slice =
      engine.groups.shard->shares_gathered_memory() && !engine.offload_param;
  const bool persistent = traits.persistent && engine.on.shard_parameters;
  if (!engine.on.shard_parameters || shard_is_slice || persistent) {
    return make_resident(engine, layout, persistent);
  }
  return make_transient(engine, layout);
}

}  // namespace acc::sharding
