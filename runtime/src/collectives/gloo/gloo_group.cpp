// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/gloo_group.hpp"

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/base/variables.hpp"
#include "acc/collectives/process_group.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/gloo/all_reduce.hpp"
#include "kernels/block_code.hpp"
#include "kernels/kernels.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace acc::collectives {
namespace {

/// Group memory on the host that other ranks do not map. Page-aligned and zero-filled, because a
/// caller may protect single buffers by `mprotect`.
class PrivateBuffer final : public GroupBuffer {
 public:
  explicit PrivateBuffer(std::size_t nbytes) {
    const std::size_t rounded = (nbytes + 4095) / 4096 * 4096;
    data_ = static_cast<std::byte*>(std::aligned_alloc(4096, rounded));
    if (data_ == nullptr) {
      throw std::bad_alloc();
    }
    std::memset(data_, 0, rounded);
    nbytes_ = nbytes;
  }
  ~PrivateBuffer() override { std::free(data_); }
};

/// Port and address of a socket in network order; empty for a socket without a port.
using Endpoint = std::string;

Endpoint endpoint_of(const sockaddr_storage& name) {
  const auto joined = [](in_port_t port, const auto& address) {
    Endpoint bytes(sizeof port + sizeof address, '\0');
    std::memcpy(bytes.data(), &port, sizeof port);
    std::memcpy(bytes.data() + sizeof port, &address, sizeof address);
    return port == 0 ? Endpoint() : bytes;
  };
  if (name.ss_family == AF_INET) {
    const auto& found = reinterpret_cast<const sockaddr_in&>(name);
    return joined(found.sin_port, found.sin_addr);
  }
  if (name.ss_family == AF_INET6) {
    const auto& found = reinterpret_cast<const sockaddr_in6&>(name);
    return joined(found.sin6_port, found.sin6_addr);
  }
  return {};
}

/// The addresses that a rank has put into the store. Gloo copies them without checking sizes, so
/// everything that it relies on is checked here.
struct StoredAddresses {
  std::vector<std::string_view> addresses;  ///< each a struct that begins with a sockaddr_storage
  std::size_t num_sequence_numbers = 0;

  /// True if `other` has as many addresses of the same sizes and families.
  [[nodiscard]] bool is_like(const StoredAddresses& other) const {
    const auto is_alike = [](std::string_view a, std::string_view b) {
      constexpr std::size_t kFamily = sizeof(sa_family_t);
      return a.size() == b.size() && a.size() > kFamily &&
             a.substr(0, kFamily) == b.substr(0, kFamily);
    };
    return num_sequence_numbers == other.num_sequence_numbers &&
           std::ranges::equal(addresses, other.addresses, is_alike);
  }
};

/// Reads what Gloo writes since 2023 (transport/tcp/context.cc, class Rank): the length of the host
/// name, the host name, the length of the address, the address, and a sequence number per rank.
std::optional<StoredAddresses> read_described(std::string_view value, std::size_t num_ranks) {
  const auto take = [&value](std::size_t size) {
    const std::string_view taken = value.substr(0, size);
    value.remove_prefix(size);
    return taken;
  };
  const auto take_sized = [&]() -> std::optional<std::string_view> {
    std::size_t size = 0;
    if (value.size() < sizeof size) {
      return std::nullopt;
    }
    std::memcpy(&size, take(sizeof size).data(), sizeof size);
    return size <= value.size() ? std::optional(take(size)) : std::nullopt;
  };
  if (!take_sized()) {  // the host name
    return std::nullopt;
  }
  const auto address = take_sized();
  if (!address || value.size() != num_ranks * sizeof(ssize_t)) {
    return std::nullopt;
  }
  return StoredAddresses{.addresses = {*address}, .num_sequence_numbers = num_ranks};
}

/// Reads what Gloo wrote before: the addresses for each of the other ranks, all of one size.
StoredAddresses read_plain(std::string_view value, std::size_t num_ranks) {
  StoredAddresses stored;
  const std::size_t each = value.size() / (num_ranks - 1);
  for (std::size_t i = 0; each * (num_ranks - 1) == value.size() && i + 1 < num_ranks; ++i) {
    stored.addresses.push_back(value.substr(i * each, each));
  }
  return stored;
}

/// The endpoints in a rank's addresses.
std::set<Endpoint> endpoints_of(const StoredAddresses& stored) {
  std::set<Endpoint> endpoints;
  for (const std::string_view address : stored.addresses) {
    sockaddr_storage found{};
    std::memcpy(&found, address.data(), std::min(address.size(), sizeof found));
    endpoints.insert(endpoint_of(found));
  }
  endpoints.erase(Endpoint());
  return endpoints;
}

/// True if the descriptor stands for the socket. Gloo may have closed it, and another file may have
/// its number.
bool stands_for(int fd, const MeshSocket& socket) {
  struct stat state {};
  return ::fstat(fd, &state) == 0 && state.st_ino == socket.inode;
}

/// The sockets of this process that are connected to one of `peers` or have an endpoint of `own`:
/// those of Gloo, which does not tell their descriptors.
std::vector<MeshSocket> sockets_at(const std::set<Endpoint>& own, const std::set<Endpoint>& peers) {
  std::vector<MeshSocket> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    const auto endpoint = [fd](auto get_name) {
      sockaddr_storage name{};
      socklen_t length = sizeof name;
      return get_name(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 ? endpoint_of(name)
                                                                            : Endpoint();
    };
    struct stat state {};
    if (::fstat(fd, &state) == 0 &&
        (own.contains(endpoint(::getsockname)) || peers.contains(endpoint(::getpeername)))) {
      found.push_back({fd, state.st_ino});
    }
  }
  return found;
}

/// The store of a group for Gloo. While it connects, each rank sets the key with its rank number to
/// the addresses at which it listens for the others.
class MeshStore final : public Mesh::Store {
 public:
  MeshStore(rendezvous::Store& store, const GroupSpec& spec)
      : store_(store),
        prefix_(spec.name + "/gloo/"),
        timeout_(spec.timeout),
        own_number_(std::to_string(spec.rank)),
        num_ranks_(spec.ranks.size()) {}
  void set(const std::string& key, std::string_view value) override {
    if (key == own_number_) {
      const std::lock_guard lock(mutex_);
      own_addresses_ = value;
    }
    store_.set(prefix_ + key, value);
  }
  std::string_view get(const std::string& key) override {
    value_ = store_.get(prefix_ + key, timeout_);
    if (key.find_first_not_of("0123456789") == std::string::npos) {
      check_addresses(key, value_);
    }
    return value_;
  }
  void wait(const std::string& key, std::chrono::milliseconds timeout) override {
    const std::string full = prefix_ + key;
    store_.wait(std::span(&full, 1), timeout);
  }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  /// The sockets with which the group is connected. Any thread.
  [[nodiscard]] std::vector<MeshSocket> sockets() const {
    const std::lock_guard lock(mutex_);
    const auto own = read_described(own_addresses_, num_ranks_);
    return sockets_at(endpoints_of(own ? *own : read_plain(own_addresses_, num_ranks_)), peers_);
  }
  /// Ends Gloo's waits for peers, except two. A connection that the peer's host has not answered
  /// has no peer for getpeername(2) yet; TCP gives it up. Versions of Gloo since 2023 abort the
  /// process when they can accept no connection, so their listening sockets stay. Any thread.
  void end_waits() const {
    const bool spares_listeners = [&] {
      const std::lock_guard lock(mutex_);
      return read_described(own_addresses_, num_ranks_).has_value();
    }();
    for (const MeshSocket& each : sockets()) {
      // A duplicate, which Gloo's thread cannot close before the socket is shut down.
      const UniqueFd socket(::fcntl(each.fd, F_DUPFD_CLOEXEC, 0));
      int listens = 0;
      socklen_t length = sizeof listens;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
      if (stands_for(socket.get(), each) && (listens == 0 || !spares_listeners)) {
        ::shutdown(socket.get(), SHUT_RDWR);
      }
    }
  }

 private:
  /// Throws if a peer's value cannot be what a rank's Gloo has written: Gloo reads it without
  /// checks, and any process that reaches the store may have written it.
  void check_addresses(const std::string& key, std::string_view value) {
    const auto own = read_described(own_addresses_, num_ranks_);
    const auto peer = own ? read_described(value, num_ranks_) : read_plain(value, num_ranks_);
    if (!peer || !peer->is_like(own ? *own : read_plain(own_addresses_, num_ranks_))) {
      throw Error(Errc::protocol,
                  fmt::format("store key {}{} holds {} bytes that are not the addresses that Gloo "
                              "publishes for one of {} ranks, of {} bytes in all",
                              prefix_, key, value.size(), num_ranks_, own_addresses_.size()));
    }
    const std::lock_guard lock(mutex_);
    peers_.merge(endpoints_of(*peer));
  }

  rendezvous::Store& store_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const std::string own_number_;
  const std::size_t num_ranks_;
  std::string value_;         ///< of the last key
  mutable std::mutex mutex_;  ///< of the members below, which only the thread that connects changes
  std::string own_addresses_;
  std::set<Endpoint> peers_;  ///< at which other ranks listen
};

/// Starts a thread that ends the waits of Gloo when the members of the job have changed: a peer
/// that is lost before it has connected closes no connection. The arguments outlive the thread.
std::jthread watch_members(const GroupSpec& spec, const MeshStore& store) {
  return std::jthread([&spec, &store](const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kInterval{50};
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      stopped.wait_for(lock, stop, kInterval, [] { return false; });
      if (!stop.stop_requested() && spec.members_changed()) {
        store.end_waits();
      }
    }
  });
}

/// Ignores SIGPIPE unless the program has its own handler. Gloo 0.5 writes to its sockets without
/// MSG_NOSIGNAL: the connection of a dead peer would kill this process before it could name the
/// peer.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

GlooGroup::GlooGroup(GroupSpec spec, const std::string& address) : ranks_{.spec = std::move(spec)} {
  ignore_broken_pipes();
  ranks_.peers.reserve(ranks_.size());
  for (int distance = 1; distance < size(); ++distance) {
    ranks_.peers.push_back((rank() + distance) % size());
  }
  try {
    MeshStore store(*ranks_.spec.store, ranks_.spec);
    const std::jthread watch =
        ranks_.spec.check ? watch_members(ranks_.spec, store) : std::jthread();
    const auto interface = process_variable("GLOO_SOCKET_IFNAME");  // as in torch
    ranks_.mesh = connect_mesh({.rank = rank(),
                                .size = size(),
                                .interface = interface ? interface->c_str() : nullptr,
                                .address = address.c_str(),
                                .store = &store,
                                .timeout = ranks_.spec.timeout});
    sockets_ = store.sockets();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (const auto change = ranks_.spec.members_changed()) {
      throw Error(Errc::peer_lost, *change);
    }
    throw Error(Errc::connection,
                fmt::format("cannot connect {} from {}: {}", describe(), address, error.what()));
  }
  const GroupSpec& own = ranks_.spec;
  ranks_.watch = std::make_unique<StallWatch>(own, own.store->clone());
}

/// A connection ends for the peers only when no process has its socket any more.
void GlooGroup::close_in_child() const noexcept {
  for (const MeshSocket& each : sockets_) {
    if (stands_for(each.fd, each)) {
      ::close(each.fd);
    }
  }
}

BufferPtr GlooGroup::allocate_gathered(std::size_t nbytes) {
  return std::make_shared<PrivateBuffer>(nbytes);
}

BufferPtr GlooGroup::allocate_contribution(std::size_t nbytes) {
  return std::make_shared<PrivateBuffer>(nbytes);
}

/// Private memory stays what it is: no message of the old group can arrive, because its connections
/// are closed.
BufferPtr GlooGroup::renew(const BufferPtr& old) {
  std::memset(old->data(), 0, old->nbytes());
  return old;
}

std::shared_ptr<Exchange> GlooGroup::exchange_all(OpKind kind, DType dtype, std::uint64_t count,
                                                  const void* data, std::size_t nbytes) {
  auto work = start(kind, dtype, count);
  std::byte* const all = work->scratch(nbytes * static_cast<std::size_t>(size())).data();
  std::byte* const mine = all + nbytes * static_cast<std::size_t>(rank());
  std::memcpy(mine, data, nbytes);
  for (const int peer : ranks_.peers) {
    work->receive(peer, all + nbytes * static_cast<std::size_t>(peer), nbytes);
    work->send(peer, mine, nbytes);
  }
  return work;
}

WorkPtr GlooGroup::gather_to(const void* shard, std::vector<void*> places, std::size_t shard_numel,
                             DType dtype, BlockCode code) {
  if (code) {
    auto work = start(OpKind::all_gather, DType::byte, kernels::coded_nbytes(code, shard_numel));
    return exchange_coded(ranks_, std::move(work), shard, std::move(places), shard_numel, dtype,
                          code);
  }
  const std::size_t nbytes = shard_numel * nbytes_of(dtype);
  return exchange_shards(ranks_, start(OpKind::all_gather, DType::byte, nbytes), shard, places,
                         nbytes);
}

WorkPtr GlooGroup::all_gather_coded(const void* shard, void* out, std::size_t shard_numel,
                                    DType dtype, BlockCode code) {
  std::vector<void*> places = slices(ranks_, out, shard_numel * nbytes_of(dtype));
  void* const mine = places[static_cast<std::size_t>(rank())];
  if (!code && mine != shard) {
    std::memcpy(mine, shard, shard_numel * nbytes_of(dtype));
  }
  return gather_to(shard, std::move(places), shard_numel, dtype, code);
}

WorkPtr GlooGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  return all_gather_coded(shard, out, shard_nbytes, DType::byte, {});
}

WorkPtr GlooGroup::reduce_scatter(std::uint32_t number, const void* in, float* out,
                                  std::size_t shard_numel, DType dtype, ReduceOptions options) {
  return sum_parts(ranks_,
                   {.number = number,
                    .kind = OpKind::reduce_scatter,
                    .parts = slices(ranks_, const_cast<void*>(in), shard_numel * nbytes_of(dtype)),
                    .numel = shard_numel,
                    .dtype = dtype,
                    .out = out,
                    .options = options});
}

WorkPtr GlooGroup::all_reduce(std::uint32_t number, float* data, std::size_t numel, DType dtype,
                              float scale, BlockCode code) {
  const DType sent = code ? DType::float32 : dtype;
  return choose_all_reduce(ranks_.size(), numel)(ranks_, {number, data, numel, sent, scale, code});
}

WorkPtr GlooGroup::all_reduce(std::span<double> data, ReduceOp op) {
  const std::size_t count = data.size();
  auto work = exchange_all(OpKind::scalars, DType::float64, count, data.data(), data.size_bytes());
  const auto* all = reinterpret_cast<const double*>(work->scratch().data());
  work->then([=, this] {
    std::vector<const double*> sources;
    sources.reserve(ranks_.size());
    for (int r = 0; r < size(); ++r) {
      sources.push_back(all + count * static_cast<std::size_t>(r));
    }
    double* const out = data.data();
    kernels::reduce_doubles(op, sources, {&out, 1}, count);
  });
  return work;
}

WorkPtr GlooGroup::broadcast(void* data, std::size_t nbytes, int root) {
  auto work = start(OpKind::broadcast, DType::byte, nbytes);
  if (rank() != root) {
    work->receive(root, data, nbytes);
    return work;
  }
  for (const int peer : ranks_.peers) {
    work->send(peer, data, nbytes);
  }
  return work;
}

WorkPtr GlooGroup::barrier() {
  auto work = start(OpKind::barrier, DType::byte, 1);
  std::byte* const bytes = work->scratch(static_cast<std::size_t>(size())).data();
  for (const int peer : ranks_.peers) {
    work->receive(peer, bytes + peer, 1);
    work->send(peer, bytes + rank(), 1);
  }
  return work;
}

void GlooGroup::abort(const std::string& reason, Errc code) noexcept {
  // The caller may free the memory of collectives that have not ended.
  ranks_.background->stop();
  ranks_.background->await_idle();
  ranks_.watch->publish_abort({reason, ranks_.spec.ranks[static_cast<std::size_t>(rank())], code});
}

}  // namespace acc::collectives
