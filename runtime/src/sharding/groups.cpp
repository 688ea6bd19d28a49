// SPDX-License-Identifier: Apache-2.0
#include "sharding/groups.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "collectives/make_group.hpp"
#include "collectives/recorded_group.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace acc::sharding {
namespace {

/// {first, first + 1, …}, `count` ranks.
std::vector<int> consecutive(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

void check_divides(int size, int ranks, const char* what, const char* of = "") {
  if (size < 1 || ranks % size != 0) {
    throw Error(Errc::config, fmt::format("{} is {}, which does not divide the {} ranks{}", what,
                                          size, ranks, of));
  }
}

/// The ranks that share a secondary copy: consecutive ranks of the shard group, so usually those of
/// one machine. hpZ does not apply to hybrid strategies, which already gather within a machine; a
/// reshard size does. A size equal to the shard group needs no copy, because the shards are one.
std::vector<int> plan_secondary(const settings::ShardingSettings& sharding,
                                const settings::StrategySwitches& on, const std::vector<int>& shard,
                                int rank) {
  const int hpz = on.replicate ? 1 : sharding.hpz_partition_size;
  const int reshard = sharding.reshard_size;
  if (!on.reshard_after_forward || (hpz <= 1 && reshard <= 1)) {
    return {};
  }
  if (hpz > 1 && reshard > 1) {
    throw Error(Errc::config,
                fmt::format("zero_hpz_partition_size is {} and fsdp_reshard_after_forward {}: both "
                            "set the ranks over which the backward gathers; set only one of them",
                            hpz, reshard));
  }
  const int size = hpz > 1 ? hpz : reshard;
  check_divides(size, static_cast<int>(shard.size()),
                hpz > 1 ? "zero_hpz_partition_size" : "fsdp_reshard_after_forward",
                " of a shard group");
  if (reshard == static_cast<int>(shard.size())) {
    return {};
  }
  const int first = (rank - shard.front()) / size * size;
  return consecutive(shard.front() + first, size);
}

}  // namespace

GroupPlan plan_groups(const settings::RuntimeSettings& settings) {
  const auto& identity = settings.identity;
  const auto& sharding = settings.sharding;
  GroupPlan plan;
  plan.on = settings::switches(sharding.strategy);
  const settings::StrategySwitches& on = plan.on;
  const int world = identity.world_size;
  if (sharding.quantized_weights && !on.shard_parameters) {
    throw Error(Errc::config, fmt::format("quantized_weights needs a strategy that shards weights, "
                                          "and {} does not",
                                          to_string(sharding.strategy)));
  }

  int shard_size = on.shard_optimizer ? world : 1;
  if (on.replicate) {
    if (sharding.shard_size == 0 && !identity.local_world_sizes.empty()) {
      throw Error(Errc::config,
                  "the hybrid strategy shards within a machine, but the machines have different "
                  "numbers of ranks; set the shard size (parallelism_config_dp_shard_size)");
    }
    shard_size = sharding.shard_size > 0 ? sharding.shard_size : identity.local_world_size;
    check_divides(shard_size, world, "the shard size of the hybrid strategy");
  }
  plan.world = consecutive(0, world);
  plan.shard = consecutive(identity.rank / shard_size * shard_size, shard_size);
  for (int r = identity.rank % shard_size; r < world; r += shard_size) {
    plan.replicate.push_back(r);
  }
  plan.secondary = plan_secondary(sharding, on, plan.shard, identity.rank);
  return plan;
}

/// Several names may stand for one group (FULL_SHARD: world and shard). It is wrapped once, with
/// the first of its names, so that a collective is recorded once.
void Groups::record(std::shared_ptr<flight::Recorder> to, const device::DevicePtr& traced) {
  recorder = std::move(to);
  struct Named {
    std::shared_ptr<collectives::ProcessGroup>* group;
    const char* name;
    const std::vector<int>& ranks;
  };
  std::map<std::shared_ptr<collectives::ProcessGroup>, std::shared_ptr<collectives::ProcessGroup>>
      wrapped;
  for (const Named& each : {Named{&world, "world", plan.world}, Named{&shard, "shard", plan.shard},
                            Named{&replicate, "replicate", plan.replicate},
                            Named{&secondary, "secondary", plan.secondary}}) {
    if (*each.group) {
      auto& once = wrapped[*each.group];
      if (!once) {
        once = collectives::record_group(*each.group, recorder, each.name, each.ranks, traced);
      }
      *each.group = once;
    }
  }
}

collectives::SentBytes Groups::sent() const {
  collectives::SentBytes all;
  std::set<const collectives::ProcessGroup*> counted;
  for (const auto& group : {world, shard, replicate, secondary}) {
    if (group && counted.insert(group.get()).second) {
      const collectives::SentBytes sent = group->sent();
      all.gathered += sent.gathered;
      all.reduced += sent.reduced;
    }
  }
  return all;
}

void Groups::check_process() const {
  if (!owner.is_current()) {
    owner.check(fmt::format("the runtime of rank {}", world->rank()));
  }
}

void Groups::abort(const std::string& reason, Errc code) const noexcept {
  if (!owner.is_current()) {
    return;
  }
  for (const auto& group : {world, shard, replicate, secondary}) {
    if (group) {
      group->abort(reason, code);
    }
  }
}

void Groups::give_up() const {
  for (const auto& group : {world, shard, replicate, secondary}) {
    if (group) {
      collectives::give_up_group(*group);
    }
  }
}

void Groups::renew(const Groups& fresh) {
  plan = fresh.plan;
  std::set<const collectives::ProcessGroup*> renewed;
  const auto replace = [&](const auto& group, const auto& by, const std::vector<int>& ranks) {
    if (group && renewed.insert(group.get()).second) {
      collectives::replace_group(*group, by, ranks);
    }
  };
  replace(world, fresh.world, plan.world);
  replace(shard, fresh.shard, plan.shard);
  replace(replicate, fresh.replicate, plan.replicate);
  replace(secondary, fresh.secondary, plan.secondary);
}

void Groups::abort_in_program(std::string_view place, const char* error) const noexcept {
  if (world->size() > 1) {
    abort(fmt::format("rank {} failed in {}: {}", world->rank(), place, error));
  }
}

void Groups::abort_after(const Error& error) const noexcept {
  switch (error.code()) {
    case Errc::collective:
    case Errc::peer_lost:
    case Errc::timeout:
    case Errc::connection: abort(error.what(), error.code()); break;
    case Errc::out_of_memory:
    case Errc::device:
      abort(fmt::format("rank {}: {}", world->rank(), error.what()), Errc::peer_lost);
      break;
    default: break;
  }
}

std::vector<double> all_gather(const Groups& groups, device::Device& device,
                               std::span<const double> values) {
  const auto rank = static_cast<std::size_t>(groups.world->rank());
  std::vector<double> all(values.size() * static_cast<std::size_t>(groups.world->size()));
  const auto memory = device.allocate(all.size() * sizeof(double), "figures");
  auto* const own = memory->as<double>() + values.size() * rank;
  device.copy(own, values.data(), values.size_bytes(), device.compute());
  groups.world->all_gather(own, memory->data(), values.size_bytes())->wait_released();
  device.copy(all.data(), memory->data(), memory->nbytes(), device.compute());
  device.record(device.compute())->synchronize();
  return all;
}

std::vector<double> sum_over_shards(const Groups& groups, device::Device& device,
                                    std::span<const double> values) {
  if (groups.shard->size() == 1) {
    return {values.begin(), values.end()};
  }
  const std::vector<double> all = all_gather(groups, device, values);
  std::vector<double> sums(values.size());
  for (const int rank : groups.plan.shard) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += all[static_cast<std::size_t>(rank) * values.size() + i];
    }
  }
  return sums;
}

std::string idle_quantization(const settings::ShardingSettings& sharding, const Reach& reach) {
  std::vector<std::string_view> given;
  std::vector<std::string_view> idle;
  const auto look_at = [&](bool wanted, const char* name, bool sends) {
    if (wanted) {
      given.push_back(name);
      if (!sends) {
        idle.push_back(name);
      }
    }
  };
  look_at(sharding.quantized_weights, "quantized_weights", reach.weights);
  look_at(sharding.quantized_gradients, "quantized_gradients", reach.gradients);
  if (reach.by_nccl && idle.size() < given.size()) {
    throw Error(Errc::not_supported,
                fmt::format("not in this version of libacc_runtime: {} over NCCL between machines; "
                            "ACC_COLLECTIVES=staged sends over host memory, which can be quantised",
                            fmt::join(given, " and ")));
  }
  return fmt::format("{}", fmt::join(idle, " and "));
}

// All ranks make the groups in this order; making a group is collective over its members. A group
// of all ranks is the world group itself, so that FULL_SHARD has one communicator.
Groups make_groups(const settings::RuntimeSettings& settings, rendezvous::Store* store,
                   const device::Opened& place, const std::function<void()>& check) {
  const collectives::GroupFactory factory(settings, store, place.device, place.backend, check);
  Groups groups;
  groups.plan = plan_groups(settings);
  groups.route = factory.route();
  const auto make = [&](const std::vector<int>& ranks, const char* kind,
                        collectives::ProcessGroup* parent = nullptr) {
    auto group = factory.make(ranks, kind, parent);
    logger(Component::collectives)
        .debug("group {} of ranks {}: {}", kind, number_list(ranks), group->describe());
    return group;
  };
  groups.world = make(groups.plan.world, "world");
  const auto part_of_world = [&](const std::vector<int>& ranks, const char* kind) {
    return ranks == groups.plan.world ? groups.world : make(ranks, kind, groups.world.get());
  };
  // With another number of machines the same names must be the same groups: the shards of a copy
  // may be all ranks now and not later, and a copy may get replicas.
  groups.shard = settings.elastic_replicas ? make(groups.plan.shard, "shard", groups.world.get())
                                           : part_of_world(groups.plan.shard, "shard");
  if (groups.plan.replicate_size() > 1 || settings.elastic_replicas) {
    groups.replicate = part_of_world(groups.plan.replicate, "replicate");
  }
  if (!groups.plan.secondary.empty()) {
    groups.secondary = part_of_world(groups.plan.secondary, "secondary");
  }
  const std::string idle =
      idle_quantization(settings.sharding, {.weights = groups.shard->spans_machines(),
                                            .gradients = groups.world->spans_machines(),
                                            .by_nccl = groups.route.nccl});
  if (!idle.empty() && settings.identity.rank == 0) {
    notice(
        Component::collectives, LogLevel::info, "acclaunch: ",
        fmt::format("no effect here: {}. Only what is sent to another machine is quantised", idle));
  }
  return groups;
}

}  // namespace acc::sharding
