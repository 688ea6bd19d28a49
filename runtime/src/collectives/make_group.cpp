// SPDX-License-Identifier: Apache-2.0
#include "collectives/make_group.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/machine.hpp"
#include "acc/base/seconds_text.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/base/variables.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "collectives/gloo/gloo_group.hpp"
#include "collectives/hierarchical/hierarchical_group.hpp"
#include "collectives/keyed_hash.hpp"
#include "collectives/shm/shm_group.hpp"
#include "collectives/solo/solo_group.hpp"
#include "collectives/staged/staged_group.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace acc::collectives {
namespace {

/// Identifies this machine until its next reboot: the kernel's boot id, which is the same in all
/// containers, else the host name.
std::string machine_name() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot.empty() ? host_name() : boot;
}

/// Index of the host (node_rank) that runs a global rank. Ranks are numbered host by host.
int host_of(int rank, const settings::WorkerIdentity& identity) {
  if (identity.local_world_sizes.empty()) {
    return rank / identity.local_world_size;
  }
  int host = 0;
  for (int next = 0;
       (next += identity.local_world_sizes[static_cast<std::size_t>(host)]) <= rank;) {
    ++host;
  }
  return host;
}

/// Number of the given ranks on each host that has any of them, in host order. `ranks` ascend.
std::vector<int> ranks_by_host(const std::vector<int>& ranks,
                               const settings::WorkerIdentity& identity) {
  std::vector<int> counts;
  int last = -1;
  for (const int rank : ranks) {
    if (const int host = host_of(rank, identity); host != last) {
      counts.push_back(0);
      last = host;
    }
    ++counts.back();
  }
  return counts;
}

}  // namespace

std::optional<std::string> GroupSpec::members_changed() const {
  try {
    if (check) {
      check();
    }
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

std::string GroupSpec::reason_of_timeout(int peer, const std::string& what, int& late, int last,
                                         bool elsewhere) const {
  const int awaited = ranks[static_cast<std::size_t>(peer)];
  late = ranks[static_cast<std::size_t>(last < 0 ? peer : last)];
  if (board && elsewhere) {
    late = board->late_rank(late);
  }
  const std::string limit = seconds_text(timeout);
  if (late == awaited) {
    return fmt::format("timeout: rank {} did not reach {} within {}", awaited, what, limit);
  }
  return fmt::format(
      "timeout: rank {} was late for more than {}: rank {} waits for it, and so did not "
      "reach {}",
      late, limit, awaited, what);
}

std::string address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (::getaddrinfo(host.c_str(), service.c_str(), &hints, &found) != 0 || found == nullptr) {
    throw Error(Errc::connection, fmt::format("cannot resolve MASTER_ADDR '{}'", host));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  // connect(2) on a UDP socket only chooses the route and the source address.
  const UniqueFd probe(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  std::array<char, NI_MAXHOST> name{};
  if (::connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name.data(), name.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    throw Error(Errc::connection,
                fmt::format("no route to MASTER_ADDR {}: {}", host, std::strerror(errno)));
  }
  return name.data();
}

std::string store_prefix(const settings::WorkerIdentity& identity, std::string_view user) {
  const std::uint64_t unknown_part = keyed_hash(hash_key(identity.job_secret), "store keys");
  return fmt::format("{}{}/{:016x}/{}/{}", rendezvous::kUnlistedKeys, user, unknown_part,
                     identity.run_id, identity.restart_count);
}

std::unique_ptr<rendezvous::Store> connect_store(const settings::WorkerIdentity& identity,
                                                 int number, std::stop_token stop) {
  if (identity.world_size == 1) {
    return nullptr;
  }
  rendezvous::TcpStoreOptions options;
  options.stop = std::move(stop);
  auto store = std::make_unique<rendezvous::TcpStore>(identity.master_addr, identity.master_port,
                                                      std::chrono::seconds(60), std::move(options));
  return std::make_unique<rendezvous::PrefixStore>(
      fmt::format("{}/{}", store_prefix(identity, "acc"), number), std::move(store));
}

GroupFactory::GroupFactory(const settings::RuntimeSettings& settings, rendezvous::Store* store,
                           device::DevicePtr device, device::Backend* backend,
                           std::function<void()> check)
    : settings_(settings),
      store_(store),
      device_(std::move(device)),
      backend_(backend),
      check_(std::move(check)) {
  if (store_ != nullptr && settings_.identity.world_size > 1) {
    board_ = std::make_shared<WaitBoard>(settings_.identity.rank, settings_.identity.world_size,
                                         *store_);
  }
  if (backend_ != nullptr && settings_.identity.world_size > 1) {
    route_ = agree_on_route();
    if (settings_.identity.rank == 0) {
      logger(Component::collectives)
          .info("collectives between GPUs: {} ({})", route_.nccl ? "nccl" : "staged",
                route_.reason);
    }
  }
}

DeviceRoute GroupFactory::agree_on_route() const {
  const bool wants_nccl = settings_.device_collectives != settings::DeviceCollectives::staged;
  // A job that asks for staging does not load NCCL at all.
  const RankHardware own{.host = machine_name(),
                         .hardware_id = device_->hardware_id(),
                         .nccl_version = wants_nccl ? backend_->nccl_version() : 0,
                         .shares_by_nccl = shares_gpus_by_nccl(),
                         .nccl_problem = wants_nccl ? backend_->nccl_problem() : ""};
  const auto key = [](int rank) { return fmt::format("hardware/{}", rank); };
  store_->set(key(settings_.identity.rank), encode(own));
  std::vector<RankHardware> ranks;
  ranks.reserve(static_cast<std::size_t>(settings_.identity.world_size));
  for (int r = 0; r < settings_.identity.world_size; ++r) {
    ranks.push_back(decode_hardware(store_->get(key(r), settings_.collective_timeout)));
  }
  return choose_route(settings_.device_collectives, ranks);
}

std::shared_ptr<ProcessGroup> GroupFactory::make(const std::vector<int>& ranks,
                                                 const std::string& kind,
                                                 ProcessGroup* parent) const {
  const auto me = std::find(ranks.begin(), ranks.end(), settings_.identity.rank);
  GroupSpec spec{.name = fmt::format("{}{}", kind, ranks.front()),
                 .ranks = ranks,
                 .rank = static_cast<int>(me - ranks.begin()),
                 .store = store_,
                 .timeout = settings_.collective_timeout,
                 .board = board_,
                 .secret = hash_key(settings_.identity.job_secret),
                 .check = check_};
  if (ranks.size() == 1) {
    return std::make_shared<SoloGroup>(std::move(spec), device_);
  }
  // A GPU group needs the host group in either case: staging runs over it, and NCCL groups use it
  // for scalars, barriers and to detect dead peers.
  auto host = make_host_group(spec);
  if (backend_ == nullptr) {
    return host;
  }
  if (!route_.nccl) {
    return std::make_shared<StagedGroup>(std::move(host), device_);
  }
  return backend_->make_nccl_group(spec, std::move(host), device_, parent, ranks.front(),
                                   settings_.nccl);
}

std::shared_ptr<ProcessGroup> GroupFactory::make_host_group(GroupSpec spec) const {
  const auto& identity = settings_.identity;
  const std::vector<int> on_host = ranks_by_host(spec.ranks, identity);
  if (on_host.size() == 1) {
    return std::make_shared<ShmGroup>(std::move(spec), !settings_.copy_gathers);
  }
  // The groups between hosts listen on the address from which this machine reaches the main
  // process; MASTER_ADDR may be a tunnel to it on this machine.
  const std::string address = address_towards(
      process_variable(kMainAddressVariable).value_or(identity.master_addr), identity.master_port);
  // HierarchicalGroup needs the same number of ranks on each host. With one rank per host there is
  // nothing to share.
  const bool alike = std::ranges::count(on_host, on_host.front()) == std::ssize(on_host);
  if (!alike || on_host.front() == 1) {
    return std::make_shared<GlooGroup>(std::move(spec), address);
  }
  return std::make_shared<HierarchicalGroup>(std::move(spec), on_host.front(), address);
}

}  // namespace acc::collectives
