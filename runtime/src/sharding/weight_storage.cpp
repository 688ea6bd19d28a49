// SPDX-License-Identifier: Apache-2.0
#include "sharding/weight_storage.hpp"

#include "acc/base/error.hpp"

namespace acc::sharding {

std::unique_ptr<WeightStorage> make_weight_storage(const Context& context, Pools& pools,
                                                   const FlatLayout& layout,
                                                   const FlatTraits& traits) {
  if (context.offload_param() && !context.on.shard_parameters) {
    throw Error(Errc::config,
                "offload of parameters needs a strategy that shards them (FULL_SHARD, "
                "SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2, ZeRO 3)");
  }
  if (!context.on.shard_optimizer || traits.ignored) {
    return make_replicated(context, layout);
  }
  // In memory that the ranks share, a rank writes its slice of the full parameter and the others
  // see it: keeping the full parameter costs no more memory than the shards.
  const bool shard_is_slice =
      context.groups.shard->shares_gathered_memory() && !context.offload_param();
  const bool persistent = traits.persistent && context.on.shard_parameters;
  if (!context.on.shard_parameters || shard_is_slice || persistent) {
    return make_resident(context, pools.publications, layout, persistent);
  }
  return make_transient(context, pools, layout);
}

}  // namespace acc::sharding
