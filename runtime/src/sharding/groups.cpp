#include "sharding/groups.hpp"

#include "acc/base/error.hpp"
#include "collectives/make_group.hpp"
#include "collectives/recorded_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace acc::sharding {
namespace {

std::vector<int> consecutive(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

void check_divides(int size, int world, const char* what) {
  if (size < 1 || world % size != 0) {
    throw Error(Errc::config,
                fmt::format("{} is {}, which does not divide the {} ranks", what, size, world));
  }
}

}  // namespace

GroupPlan plan_groups(const plugins::RuntimeSettings& settings) {
  const auto& identity = settings.identity;
  const auto& sharding = settings.sharding;
  const auto on = plugins::switches(sharding.strategy);
  const int world = identity.world_size;

  int shard_size = on.shard_optimizer ? world : 1;
  if (on.replicate) {
    if (sharding.shard_size == 0 && !identity.local_world_sizes.empty()) {
      throw Error(Errc::config,
                  "the hybrid strategy shards within a machine, and the machines have differently "
                  "many ranks; name the shard size (parallelism_config_dp_shard_size)");
    }
    shard_size = sharding.shard_size > 0 ? sharding.shard_size : identity.local_world_size;
    check_divides(shard_size, world, "the shard size of the hybrid strategy");
  }
  GroupPlan plan;
  plan.world = consecutive(0, world);
  plan.shard = consecutive(identity.rank / shard_size * shard_size, shard_size);
  for (int r = identity.rank % shard_size; r < world; r += shard_size) {
    plan.replicate.push_back(r);
  }
  if (sharding.hpz_partition_size > 1 && on.reshard_after_forward && !on.replicate) {
    const int hpz = sharding.hpz_partition_size;
    check_divides(hpz, world, "zero_hpz_partition_size");
    plan.hpz = consecutive(identity.rank / hpz * hpz, hpz);
  }
  return plan;
}

void Groups::replace(const Wrap& wrap) {
  struct Named {
    std::shared_ptr<collectives::ProcessGroup>* group;
    const char* name;
    const std::vector<int>& ranks;
  };
  std::map<std::shared_ptr<collectives::ProcessGroup>, std::shared_ptr<collectives::ProcessGroup>>
      wrapped;
  for (const Named& each : {Named{&world, "world", plan.world}, Named{&shard, "shard", plan.shard},
                            Named{&replicate, "replicate", plan.replicate},
                            Named{&hpz, "hpz", plan.hpz}}) {
    if (*each.group) {
      auto& once = wrapped[*each.group];
      once = once ? once : wrap(*each.group, each.name, each.ranks);
      *each.group = once;
    }
  }
}

void Groups::record(std::shared_ptr<flight::Recorder> to) {
  recorder = std::move(to);
  replace([this](auto group, const char* name, const std::vector<int>& ranks) {
    return collectives::record_group(std::move(group), recorder, name, ranks);
  });
}

void Groups::abort(const std::string& reason) const noexcept {
  for (const auto& group : {world, shard, replicate, hpz}) {
    if (group) {
      group->abort(reason);
    }
  }
}

Groups make_groups(const plugins::RuntimeSettings& settings, rendezvous::Store* store,
                   const device::Opened& place) {
  const collectives::GroupFactory factory(settings, store, place.device, place.backend);
  Groups groups;
  groups.plan = plan_groups(settings);
  groups.route = factory.route();
  groups.world = factory.make(groups.plan.world, "world");
  const auto part_of_world = [&](const std::vector<int>& ranks, const char* kind) {
    return ranks == groups.plan.world ? groups.world
                                      : factory.make(ranks, kind, groups.world.get());
  };
  groups.shard = part_of_world(groups.plan.shard, "shard");
  if (groups.plan.replicate_size() > 1) {
    groups.replicate = part_of_world(groups.plan.replicate, "replicate");
  }
  if (!groups.plan.hpz.empty()) {
    groups.hpz = part_of_world(groups.plan.hpz, "hpz");
  }
  return groups;
}

}  // namespace acc::sharding
