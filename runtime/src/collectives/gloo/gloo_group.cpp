// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/gloo_group.hpp"

#include "acc/base/error.hpp"
#include "acc/collectives/process_group.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/gloo/mesh.hpp"
#include "collectives/gloo/stall_watch.hpp"
#include "collectives/steps.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
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

 private:
  /// Throws if a peer's value cannot be what a rank's Gloo has written: Gloo reads it without
  /// checks, and any process that reaches the store may have written it.
  void check_addresses(const std::string& key, std::string_view value) const {
    const auto own = read_described(own_addresses_, num_ranks_);
    const auto peer = own ? read_described(value, num_ranks_) : read_plain(value, num_ranks_);
    if (!peer || !peer->is_like(own ? *own : read_plain(own_addresses_, num_ranks_))) {
      throw Error(Errc::protocol,
                  fmt::format("store key {}{} holds {} bytes that are not the addresses that Gloo "
                              "publishes for one of {} ranks, of {} bytes in all",
                              prefix_, key, value.size(), num_ranks_, own_addresses_.size()));
    }
  }

  rendezvous::Store& store_;
  const std::string prefix_;
  const std::chrono::milliseconds timeout_;
  const std::string own_number_;
  const std::size_t num_ranks_;
  std::string own_addresses_;
  std::string value_;  ///< of the last key
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

/// The messages of one collective and the computation that follows them. All messages are in flight
/// from the issue on; `wait` waits for the receives, then for the sends (after which this rank's
/// input may be overwritten), then runs the computation.
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
    for (const bool receiving : {true, false}) {
      for (auto& each : receiving ? receives_ : sends_) {
        group_->watch_->awaits(each.peer);
        if (!wait_for(each, receiving)) {
          const auto verdict = group_->watch_->give_up();
          fail(verdict ? *verdict : StallWatch::Verdict{"wait cancelled", std::nullopt});
        }
      }
    }
    group_->watch_->end();
    done_ = true;
    if (finish_) {
      finish_();
    }
  }
  void wait_released() override { wait(); }

 private:
  struct Posted {
    int peer;
    std::unique_ptr<Mesh::Message> message;
  };

  /// Returns false if the wait was cancelled. Throws if the connection broke or the timeout passed.
  bool wait_for(Posted& posted, bool receiving) {
    bool arrived = false;
    guarded(posted.peer, [&] {
      const auto timeout = group_->spec_.timeout;
      arrived =
          receiving ? posted.message->wait_received(timeout) : posted.message->wait_sent(timeout);
    });
    return arrived;
  }

  void cancel() {
    for (auto* const messages : {&receives_, &sends_}) {
      for (auto& each : *messages) {
        each.message->cancel();
      }
    }
  }

  /// Runs a call of Gloo and translates its exceptions: to a published abort if there is one, to a
  /// timeout if the time is over, else to the loss of `peer`. Gloo throws the same type for all of
  /// these.
  template <typename Call>
  void guarded(int peer, const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      call();
    } catch (const std::exception& error) {
      group_->watch_->give_up();
      const int who = group_->spec_.ranks[static_cast<std::size_t>(peer)];
      if (const auto abort = group_->watch_->abort_reason()) {
        fail(*abort);
      }
      if (std::chrono::steady_clock::now() - begin >= group_->spec_.timeout) {
        int late = -1;
        const std::string reason = group_->spec_.reason_of_timeout(peer, call_, late);
        fail({reason, late}, Errc::timeout);
      }
      fail({fmt::format("lost rank {} in {}: {}", who, call_, error.what()), who});
    }
  }

  [[noreturn]] void fail(const StallWatch::Verdict& why, Errc code = Errc::collective) {
    group_->watch_->publish_abort(why.reason, why.at_fault);
    throw Error(code, why.reason, why.at_fault);
  }

  GlooGroup* group_;
  std::string call_;
  std::uint64_t tag_;
  std::vector<std::byte> scratch_;  ///< messages point into it, so it is destroyed after them
  std::vector<Posted> sends_;
  std::vector<Posted> receives_;
  std::function<void()> finish_;
  bool done_ = false;
};

GlooGroup::GlooGroup(GroupSpec spec, const std::string& address) : spec_(std::move(spec)) {
  ignore_broken_pipes();
  try {
    MeshStore store(*spec_.store, spec_);
    mesh_ = connect_mesh({.rank = rank(),
                          .size = size(),
                          .interface = std::getenv("GLOO_SOCKET_IFNAME"),  // as in torch
                          .address = address.c_str(),
                          .store = &store,
                          .timeout = spec_.timeout});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Errc::connection,
                fmt::format("cannot connect {} from {}: {}", describe(), address, error.what()));
  }
  watch_ = std::make_unique<StallWatch>(spec_, spec_.store->clone());
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

std::shared_ptr<GlooGroup::Exchange> GlooGroup::start(OpKind kind, DType dtype,
                                                      std::uint64_t count) {
  ++sequence_;
  std::string call = fmt::format("{} of {} x {}", to_string(kind), count, to_string(dtype));
  // High 32 bits: the collective's number; low 32 bits: a hash of what all ranks must agree on.
  const std::uint64_t detail =
      (count * 31 + static_cast<std::uint64_t>(kind)) * 31 + static_cast<std::uint64_t>(dtype);
  const std::uint64_t tag = (std::uint64_t{sequence_} << 32) | (detail & 0xffffffffU);
  watch_->called(sequence_, call);
  return std::make_shared<Exchange>(this, call + " in " + describe(), tag);
}

std::shared_ptr<GlooGroup::Exchange> GlooGroup::exchange_all(OpKind kind, DType dtype,
                                                             std::uint64_t count, const void* data,
                                                             std::size_t nbytes) {
  auto work = start(kind, dtype, count);
  std::byte* const all = work->scratch(nbytes * static_cast<std::size_t>(size())).data();
  std::byte* const mine = all + nbytes * static_cast<std::size_t>(rank());
  std::memcpy(mine, data, nbytes);
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) {
      work->receive(r, all + nbytes * static_cast<std::size_t>(r), nbytes);
      work->send(r, mine, nbytes);
    }
  }
  return work;
}

WorkPtr GlooGroup::gather_to(const void* shard, std::vector<void*> places,
                             std::size_t shard_nbytes) {
  auto work = start(OpKind::all_gather, DType::byte, shard_nbytes);
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) {
      work->receive(r, places[static_cast<std::size_t>(r)], shard_nbytes);
    }
  }
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) {
      work->send(r, shard, shard_nbytes);
    }
  }
  return work;
}

WorkPtr GlooGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  std::vector<void*> places;
  for (int r = 0; r < size(); ++r) {
    places.push_back(static_cast<std::byte*>(out) + shard_nbytes * static_cast<std::size_t>(r));
  }
  void* const mine = places[static_cast<std::size_t>(rank())];
  if (mine != shard) {
    std::memcpy(mine, shard, shard_nbytes);
  }
  return gather_to(shard, std::move(places), shard_nbytes);
}

WorkPtr GlooGroup::reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                                  ReduceOptions options) {
  auto work = start(OpKind::reduce_scatter, dtype, shard_numel);
  const std::size_t nbytes = shard_numel * nbytes_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  std::byte* const incoming = work->scratch(nbytes * ranks).data();
  const auto* from = static_cast<const std::byte*>(in);
  std::vector<const void*> sources(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const bool mine = static_cast<int>(r) == rank();
    sources[r] = mine ? from + r * nbytes : incoming + r * nbytes;
    if (!mine) {
      work->receive(static_cast<int>(r), incoming + r * nbytes, nbytes);
    }
  }
  // Receives are posted before sends, so that incoming data goes directly to its place.
  for (std::size_t r = 0; r < ranks; ++r) {
    if (static_cast<int>(r) != rank()) {
      work->send(static_cast<int>(r), from + r * nbytes, nbytes);
    }
  }
  work->then([=] {
    kernels::kernels().reduce({.sources = sources,
                               .destinations = {&out, 1},
                               .numel = shard_numel,
                               .dtype = dtype,
                               .scale = options.scale,
                               .accumulate = options.accumulate});
  });
  return work;
}

WorkPtr GlooGroup::all_reduce(float* data, std::size_t numel, DType /*dtype*/, float scale) {
  const auto ranks = static_cast<std::size_t>(size());
  // Not divisible by the number of ranks: every rank receives all arrays and sums them itself.
  // Otherwise reduce_scatter, then all_gather, which sends only 2 / ranks as much.
  if (numel % ranks != 0) {
    auto work =
        exchange_all(OpKind::all_reduce, DType::float32, numel, data, numel * sizeof(float));
    const auto* all = reinterpret_cast<const float*>(work->scratch().data());
    work->then([=] {
      std::vector<const void*> sources;
      for (std::size_t r = 0; r < ranks; ++r) {
        sources.push_back(all + r * numel);
      }
      kernels::kernels().reduce(
          {.sources = sources, .destinations = {&data, 1}, .numel = numel, .scale = scale});
    });
    return work;
  }
  const std::size_t shard = numel / ranks;
  float* const mine = data + shard * static_cast<std::size_t>(rank());
  auto summed = std::make_shared<std::vector<float>>(shard);
  const auto gather = [=, this]() -> WorkPtr {
    std::memcpy(mine, summed->data(), shard * sizeof(float));
    return all_gather(mine, data, shard * sizeof(float));
  };
  return std::make_shared<Steps>(
      this, reduce_scatter(data, summed->data(), shard, DType::float32, {.scale = scale}),
      std::vector<Steps::Step>{gather});
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
  for (int r = 0; r < size(); ++r) {
    if (rank() == root && r != root) {
      work->send(r, data, nbytes);
    }
  }
  if (rank() != root) {
    work->receive(root, data, nbytes);
  }
  return work;
}

WorkPtr GlooGroup::barrier() {
  auto work = start(OpKind::barrier, DType::byte, 1);
  std::byte* const bytes = work->scratch(static_cast<std::size_t>(size())).data();
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) {
      work->receive(r, bytes + r, 1);
      work->send(r, bytes + rank(), 1);
    }
  }
  return work;
}

std::optional<std::string> GlooGroup::failure() const {
  return watch_->failure();
}

void GlooGroup::abort(const std::string& reason) noexcept {
  watch_->publish_abort(reason, spec_.ranks[static_cast<std::size_t>(rank())]);
}

}  // namespace acc::collectives
