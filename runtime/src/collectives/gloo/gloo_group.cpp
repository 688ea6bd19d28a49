// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/gloo_group.hpp"

#include "acc/base/error.hpp"
#include "acc/collectives/process_group.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/gloo/background.hpp"
#include "collectives/gloo/mesh.hpp"
#include "collectives/gloo/stall_watch.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

// Collectives are written here with Gloo's point-to-point messages, not with Gloo's own
// collectives: those run one at a time and block the caller, whereas several of ours must be in
// flight; and they sum in an order that depends on the algorithm, whereas ours sum in rank order
// and give bitwise equal results on all ranks.
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

/// The port of an address in network order; 0 if it has none.
in_port_t port_of(const sockaddr_storage& address) {
  // The port of an IPv6 address lies at the same place.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return address.ss_family == AF_INET || address.ss_family == AF_INET6
             ? reinterpret_cast<const sockaddr_in&>(address).sin_port
             : in_port_t{0};
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

/// Numbers of the ports in a rank's addresses, each in network order.
std::set<in_port_t> ports_of(const StoredAddresses& stored) {
  std::set<in_port_t> ports;
  for (const std::string_view address : stored.addresses) {
    sockaddr_storage found{};
    std::memcpy(&found, address.data(), std::min(address.size(), sizeof found));
    ports.insert(port_of(found));
  }
  return ports;
}

/// The sockets of this process between a port of `own` and a rank, or that listen at one: those of
/// Gloo, which keeps them to itself.
std::vector<MeshSocket> sockets_at(const std::set<in_port_t>& own,
                                   const std::set<in_port_t>& peers) {
  std::vector<MeshSocket> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    const auto port = [fd](auto get_name) -> in_port_t {
      sockaddr_storage name{};
      socklen_t length = sizeof name;
      return get_name(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 ? port_of(name) : 0;
    };
    struct stat state {};
    if ((own.contains(port(::getsockname)) || peers.contains(port(::getpeername))) &&
        ::fstat(fd, &state) == 0) {
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
  /// The sockets with which the group is connected.
  [[nodiscard]] std::vector<MeshSocket> sockets() const {
    const auto own = read_described(own_addresses_, num_ranks_);
    return sockets_at(ports_of(own ? *own : read_plain(own_addresses_, num_ranks_)), peers_);
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
    peers_.merge(ports_of(*peer));
  }

  rendezvous::Store& store_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const std::string own_number_;
  const std::size_t num_ranks_;
  std::string own_addresses_;
  std::set<in_port_t> peers_;  ///< at which other ranks listen
  std::string value_;          ///< of the last key
};

/// What an all_reduce of a float32 array sends: the array itself, or a copy of it in a 16-bit
/// dtype.
class SentArray {
 public:
  SentArray(float* data, std::size_t numel, DType dtype)
      : data_(data), numel_(numel), dtype_(dtype) {
    if (dtype != DType::float32) {
      copy_ = std::make_shared<std::vector<std::byte>>(numel * nbytes_of(dtype));
      round(0, numel);
    }
  }
  [[nodiscard]] std::byte* data() const noexcept {
    return copy_ ? copy_->data() : reinterpret_cast<std::byte*>(data_);
  }
  /// Owner of `data`; null if that is the caller's array.
  [[nodiscard]] std::shared_ptr<void> owner() const noexcept { return copy_; }

  /// Copies elements [first, first + count) of the array to what is sent.
  void round(std::size_t first, std::size_t count) const {
    if (copy_) {
      kernels::cast(data_ + first, DType::float32, data() + first * nbytes_of(dtype_), dtype_,
                    count);
    }
  }
  /// Copies what was received to the whole array.
  void widen() const {
    if (copy_) {
      kernels::cast(data(), dtype_, data_, DType::float32, numel_);
    }
  }

 private:
  float* data_;
  std::size_t numel_;
  DType dtype_;
  std::shared_ptr<std::vector<std::byte>> copy_;
};

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

/// Messages between ranks and the computation that follows them. All messages are in flight from
/// the issue on; `wait` waits for the receives, then for the sends (after which this rank's input
/// may be overwritten), then runs the computation.
class GlooGroup::Exchange final : public Work {
 public:
  Exchange(GlooGroup* group, std::string call, std::uint64_t tag)
      : group_(group), call_(std::move(call)), tag_(tag) {}

  void send(int peer, const void* data, std::size_t nbytes) {
    guarded(peer, [&] {
      auto message = group_->mesh_->message(const_cast<void*>(data), nbytes);
      message->send(peer, tag_);
      sends_.push_back({peer, std::move(message)});
    });
  }
  void receive(int peer, void* data, std::size_t nbytes) {
    guarded(peer, [&] {
      auto message = group_->mesh_->message(data, nbytes);
      message->receive(peer, tag_);
      receives_.push_back({peer, std::move(message)});
    });
  }
  /// Keeps memory that the messages use. They end before it is freed.
  void keep(std::shared_ptr<void> memory) { kept_ = std::move(memory); }
  /// Sets the computation: it runs once, in the first wait, after all messages are complete.
  void then(std::function<void()> finish) { finish_ = std::move(finish); }
  std::vector<std::byte>& scratch() { return scratch_; }
  std::vector<std::byte>& scratch(std::size_t nbytes) {
    scratch_.resize(nbytes);
    return scratch_;
  }

  void wait() override {
    if (done_) {
      return;
    }
    // Gloo's waits block. While this thread is in one, the watch may find a reason to give up and
    // calls `cancel` on its own thread, which makes the wait return false.
    group_->watch_->begin([this] { cancel(); });
    const bool complete = wait_for_messages([this](Posted& posted, bool receiving) {
      bool arrived = false;
      guarded(posted.peer, [&] { arrived = posted.wait(receiving, group_->spec_.timeout); });
      return arrived;
    });
    if (!complete) {
      fail_stopped();
    }
    group_->watch_->end();
    done_ = true;
    if (finish_) {
      finish_();
    }
  }
  void wait_released() override { wait(); }

  /// For the group's thread: the same without a time limit, and with Gloo's exceptions. Returns
  /// false if the thread has been stopped.
  bool wait_on(Background& thread) {
    const bool complete = wait_for_messages([&thread](Posted& posted, bool receiving) {
      return thread.wait([&] { return posted.wait(receiving, kNoLimit); },
                         [&] { posted.message->cancel(); });
    });
    if (complete && finish_) {
      finish_();
    }
    return complete;
  }
  /// These fail the group for an error, timeout or stop that another thread has met in `wait_on`.
  [[noreturn]] void fail_with(const std::exception& error) {
    fail_for(awaited_, error, /*timed_out=*/false);
  }
  [[noreturn]] void fail_late() {
    fail_for(awaited_, std::runtime_error("timeout"), /*timed_out=*/true);
  }
  [[noreturn]] void fail_stopped() {
    auto verdict = group_->watch_->give_up();
    if (!verdict) {
      verdict = group_->watch_->abort_reason();
    }
    fail(verdict ? *verdict : StallWatch::Verdict{"wait cancelled", std::nullopt});
  }

 private:
  static constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24 * 365);
  /// Time in which a peer that has closed its connection may tell the reason.
  static constexpr std::chrono::milliseconds kTellTime{1000};
  static constexpr std::chrono::milliseconds kTellInterval{20};

  struct Posted {
    int peer;
    std::unique_ptr<Mesh::Message> message;

    /// Returns false if the wait was cancelled. Throws if the connection broke or the time is over.
    [[nodiscard]] bool wait(bool receiving, std::chrono::milliseconds limit) const {
      return receiving ? message->wait_received(limit) : message->wait_sent(limit);
    }
  };

  /// Calls wait(message, is received) for all messages in turn. Returns false as soon as one wait
  /// does.
  template <typename Wait>
  bool wait_for_messages(const Wait& wait) {
    for (const bool receiving : {true, false}) {
      for (Posted& each : receiving ? receives_ : sends_) {
        awaited_ = each.peer;
        group_->watch_->awaits(each.peer);
        if (!wait(each, receiving)) {
          return false;
        }
      }
    }
    return true;
  }

  void cancel() {
    for (auto* const messages : {&receives_, &sends_}) {
      for (auto& each : *messages) {
        each.message->cancel();
      }
    }
  }

  /// Runs a call of Gloo that sends to, receives from or waits for `peer`.
  template <typename Call>
  void guarded(int peer, const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      call();
    } catch (const std::exception& error) {
      fail_for(peer, error, std::chrono::steady_clock::now() - begin >= group_->spec_.timeout);
    }
  }

  /// Translates an exception of Gloo: to a published abort if there is one, to a timeout if the
  /// time is over, else to the loss of `peer`. Gloo throws the same type for all of these.
  [[noreturn]] void fail_for(int peer, const std::exception& error, bool timed_out) {
    group_->watch_->give_up();
    const int who = group_->spec_.ranks[static_cast<std::size_t>(peer)];
    // Gloo closes all connections of a rank whose wait times out, before that rank can tell why.
    const auto told_by =
        std::chrono::steady_clock::now() + (timed_out ? std::chrono::milliseconds(0) : kTellTime);
    auto abort = group_->watch_->abort_reason();
    while (!abort && std::chrono::steady_clock::now() < told_by) {
      std::this_thread::sleep_for(kTellInterval);
      abort = group_->watch_->abort_reason();
    }
    if (abort) {
      fail(*abort);
    }
    if (timed_out) {
      int late = -1;
      const std::string reason = group_->spec_.reason_of_timeout(peer, call_, late);
      fail({reason, late}, Errc::timeout);
    }
    fail({fmt::format("lost rank {} in {}: {}", who, call_, error.what()), who});
  }

  [[noreturn]] void fail(const StallWatch::Verdict& why, Errc code = Errc::collective) {
    group_->background_->stop();
    group_->watch_->publish_abort(why.reason, why.at_fault);
    throw Error(code, why.reason, why.at_fault);
  }

  GlooGroup* group_;
  std::string call_;
  std::uint64_t tag_;
  std::shared_ptr<void> kept_;
  std::vector<std::byte> scratch_;  ///< messages point into it, so it is destroyed after them
  std::vector<Posted> sends_;
  std::vector<Posted> receives_;
  std::function<void()> finish_;
  std::atomic<int> awaited_ = 0;  ///< peer of the message that is waited for
  bool done_ = false;
};

/// An all_reduce in two phases: a reduce_scatter, in which each rank sums its slice in place, and
/// an all_gather of the slices. The second one is issued by the group's thread, as soon as the sum
/// is complete.
class GlooGroup::TwoPhaseSum final : public Work, public std::enable_shared_from_this<TwoPhaseSum> {
 public:
  using Gather = std::function<WorkPtr()>;
  TwoPhaseSum(GlooGroup* group, std::shared_ptr<Exchange> sum, Gather gather)
      : group_(group), sum_(std::move(sum)), gather_(std::move(gather)) {}

  void start() {
    group_->background_->add([self = shared_from_this()] { self->run(); });
  }

  void wait() override {
    if (!gathering_) {
      await_sum();
    }
    gathering_->wait();
  }
  void wait_released() override { wait(); }

 private:
  void run() {
    WorkPtr gathering;
    std::exception_ptr error;
    try {
      if (sum_->wait_on(*group_->background_)) {
        gathering = gather_();
      }
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    issued_ = std::move(gathering);
    error_ = error;
    ended_ = true;
    changed_.notify_all();
  }

  void await_sum() {
    group_->watch_->begin([this] { group_->background_->stop(); });
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, group_->spec_.timeout, [this] { return ended_; })) {
      lock.unlock();
      sum_->fail_late();
    }
    if (error_) {
      try {
        std::rethrow_exception(error_);
      } catch (const Error&) {
        group_->watch_->give_up();
        throw;
      } catch (const std::exception& error) {
        sum_->fail_with(error);
      }
    }
    if (!issued_) {
      sum_->fail_stopped();
    }
    group_->watch_->end();
    gathering_ = issued_;
  }

  GlooGroup* group_;
  std::shared_ptr<Exchange> sum_;
  Gather gather_;
  WorkPtr gathering_;  ///< the second phase, once `wait` has seen it
  std::mutex mutex_;   ///< guards issued_, error_, ended_
  std::condition_variable changed_;
  WorkPtr issued_;  ///< null if the first phase has failed or was stopped
  std::exception_ptr error_;
  bool ended_ = false;  ///< the first phase has ended in one of these ways
};

GlooGroup::GlooGroup(GroupSpec spec, const std::string& address)
    : spec_(std::move(spec)), background_(std::make_unique<Background>()) {
  ignore_broken_pipes();
  for (int distance = 1; distance < size(); ++distance) {
    peers_.push_back((rank() + distance) % size());
  }
  try {
    MeshStore store(*spec_.store, spec_);
    mesh_ = connect_mesh({.rank = rank(),
                          .size = size(),
                          .interface = std::getenv("GLOO_SOCKET_IFNAME"),  // as in torch
                          .address = address.c_str(),
                          .store = &store,
                          .timeout = spec_.timeout});
    sockets_ = store.sockets();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Errc::connection,
                fmt::format("cannot connect {} from {}: {}", describe(), address, error.what()));
  }
  watch_ = std::make_unique<StallWatch>(spec_, spec_.store->clone());
}

/// A connection ends for the peers only when no process has its socket any more.
void GlooGroup::close_in_child() const noexcept {
  for (const MeshSocket& each : sockets_) {
    struct stat state {};
    if (::fstat(each.fd, &state) == 0 && state.st_ino == each.inode) {  // Gloo may have closed it
      ::close(each.fd);
    }
  }
}

GlooGroup::~GlooGroup() = default;

std::string GlooGroup::describe() const {
  return fmt::format("gloo[{}]", fmt::join(spec_.ranks, ","));
}

BufferPtr GlooGroup::allocate_gathered(std::size_t nbytes) {
  return std::make_shared<PrivateBuffer>(nbytes);
}

BufferPtr GlooGroup::allocate_contribution(std::size_t nbytes) {
  return std::make_shared<PrivateBuffer>(nbytes);
}

std::shared_ptr<GlooGroup::Exchange> GlooGroup::start(std::uint32_t number, OpKind kind,
                                                      DType dtype, std::uint64_t count,
                                                      bool second_phase) {
  std::string call = fmt::format("{} of {} x {}", to_string(kind), count, to_string(dtype));
  // High 32 bits: the collective's number; bit 31: its phase; low 31 bits: a hash of what all ranks
  // must agree on.
  const std::uint64_t detail =
      (count * 31 + static_cast<std::uint64_t>(kind)) * 31 + static_cast<std::uint64_t>(dtype);
  const std::uint64_t tag = (std::uint64_t{number} << 32) |
                            (std::uint64_t{second_phase ? 1U : 0U} << 31) | (detail & 0x7fffffffU);
  watch_->called(number, call);
  return std::make_shared<Exchange>(this, call + " in " + describe(), tag);
}

std::shared_ptr<GlooGroup::Exchange> GlooGroup::exchange_all(OpKind kind, DType dtype,
                                                             std::uint64_t count, const void* data,
                                                             std::size_t nbytes) {
  auto work = start(kind, dtype, count);
  std::byte* const all = work->scratch(nbytes * static_cast<std::size_t>(size())).data();
  std::byte* const mine = all + nbytes * static_cast<std::size_t>(rank());
  std::memcpy(mine, data, nbytes);
  for (const int peer : peers_) {
    work->receive(peer, all + nbytes * static_cast<std::size_t>(peer), nbytes);
    work->send(peer, mine, nbytes);
  }
  return work;
}

WorkPtr GlooGroup::gather_to(const void* shard, std::vector<void*> places,
                             std::size_t shard_nbytes) {
  return exchange_shards(start(OpKind::all_gather, DType::byte, shard_nbytes), shard, places,
                         shard_nbytes);
}

WorkPtr GlooGroup::exchange_shards(std::shared_ptr<Exchange> work, const void* shard,
                                   const std::vector<void*>& places,
                                   std::size_t shard_nbytes) const {
  for (const int peer : peers_) {
    work->receive(peer, places[static_cast<std::size_t>(peer)], shard_nbytes);
  }
  for (const int peer : peers_) {
    work->send(peer, shard, shard_nbytes);
  }
  return work;
}

/// Addresses of the ranks' slices of `out`.
std::vector<void*> GlooGroup::slices(void* out, std::size_t nbytes) const {
  std::vector<void*> places;
  for (int r = 0; r < size(); ++r) {
    places.push_back(static_cast<std::byte*>(out) + nbytes * static_cast<std::size_t>(r));
  }
  return places;
}

WorkPtr GlooGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  std::vector<void*> places = slices(out, shard_nbytes);
  void* const mine = places[static_cast<std::size_t>(rank())];
  if (mine != shard) {
    std::memcpy(mine, shard, shard_nbytes);
  }
  return gather_to(shard, std::move(places), shard_nbytes);
}

std::shared_ptr<GlooGroup::Exchange> GlooGroup::sum(const Sum& sum) {
  auto work = start(sum.number, sum.kind, sum.dtype, sum.numel);
  const std::size_t nbytes = sum.numel * nbytes_of(sum.dtype);
  const auto ranks = static_cast<std::size_t>(size());
  std::byte* const incoming = work->scratch(nbytes * (ranks - 1)).data();
  std::vector<const void*> sources(ranks);
  std::size_t received = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (static_cast<int>(r) == rank()) {
      sources[r] = sum.parts[r];
    } else {
      std::byte* const place = incoming + nbytes * received++;
      sources[r] = place;
      work->receive(static_cast<int>(r), place, nbytes);
    }
  }
  // Receives are posted before sends, so that incoming data goes directly to its place.
  for (const int peer : peers_) {
    work->send(peer, sum.parts[static_cast<std::size_t>(peer)], nbytes);
  }
  work->then([sources = std::move(sources), numel = sum.numel, dtype = sum.dtype, out = sum.out,
              options = sum.options] {
    kernels::kernels().reduce({.sources = sources,
                               .destinations = {&out, 1},
                               .numel = numel,
                               .dtype = dtype,
                               .scale = options.scale,
                               .accumulate = options.accumulate});
  });
  return work;
}

WorkPtr GlooGroup::reduce_scatter(std::uint32_t number, const void* in, float* out,
                                  std::size_t shard_numel, DType dtype, ReduceOptions options) {
  return sum({.number = number,
              .kind = OpKind::reduce_scatter,
              .parts = slices(const_cast<void*>(in), shard_numel * nbytes_of(dtype)),
              .numel = shard_numel,
              .dtype = dtype,
              .out = out,
              .options = options});
}

// Two ranks exchange their arrays: one phase moves as many bytes as two phases would. So do more
// ranks if the array cannot be divided among them. Otherwise each rank sums a slice and sends the
// sum to the others, so that it sends only 2 / ranks as much. Every number is sent in `dtype`. A
// rank takes what it sends into its own sum as well, so that all ranks have the same result.
WorkPtr GlooGroup::all_reduce(std::uint32_t number, float* data, std::size_t numel, DType dtype,
                              float scale) {
  const auto ranks = static_cast<std::size_t>(size());
  const SentArray sent(data, numel, dtype);
  if (ranks == 2 || numel % ranks != 0) {
    auto work = sum({.number = number,
                     .kind = OpKind::all_reduce,
                     .parts = std::vector<void*>(ranks, sent.data()),
                     .numel = numel,
                     .dtype = dtype,
                     .out = data,
                     .options = {.scale = scale}});
    work->keep(sent.owner());
    return work;
  }
  const std::size_t shard = numel / ranks;
  const std::size_t first = shard * static_cast<std::size_t>(rank());
  const std::size_t nbytes = shard * nbytes_of(dtype);
  auto phase = sum({.number = number,
                    .kind = OpKind::all_reduce,
                    .parts = slices(sent.data(), nbytes),
                    .numel = shard,
                    .dtype = dtype,
                    .out = data + first,
                    .options = {.scale = scale}});
  phase->keep(sent.owner());
  auto work = std::make_shared<TwoPhaseSum>(this, std::move(phase), [=, this] {
    sent.round(first, shard);
    const std::vector<void*> places = slices(sent.data(), nbytes);
    auto gather = start(number, OpKind::all_reduce, dtype, shard, true);
    gather->then([sent] { sent.widen(); });
    return exchange_shards(std::move(gather), places[static_cast<std::size_t>(rank())], places,
                           nbytes);
  });
  work->start();
  return work;
}

WorkPtr GlooGroup::all_reduce(std::span<double> data, ReduceOp op) {
  const std::size_t count = data.size();
  auto work = exchange_all(OpKind::scalars, DType::float64, count, data.data(), data.size_bytes());
  const auto* all = reinterpret_cast<const double*>(work->scratch().data());
  work->then([=, this] {
    std::vector<const double*> sources;
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
  for (const int peer : peers_) {
    work->send(peer, data, nbytes);
  }
  return work;
}

WorkPtr GlooGroup::barrier() {
  auto work = start(OpKind::barrier, DType::byte, 1);
  std::byte* const bytes = work->scratch(static_cast<std::size_t>(size())).data();
  for (const int peer : peers_) {
    work->receive(peer, bytes + peer, 1);
    work->send(peer, bytes + rank(), 1);
  }
  return work;
}

std::optional<std::string> GlooGroup::failure() const {
  return watch_->failure();
}

void GlooGroup::abort(const std::string& reason) noexcept {
  // The caller may free the memory of collectives that have not ended.
  background_->stop();
  background_->await_idle();
  watch_->publish_abort(reason, spec_.ranks[static_cast<std::size_t>(rank())]);
}

}  // namespace acc::collectives
