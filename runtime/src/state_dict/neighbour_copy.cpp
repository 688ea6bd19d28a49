// SPDX-License-Identifier: Apache-2.0
#include "state_dict/neighbour_copy.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "collectives/make_group.hpp"
#include "device/cpu_device.hpp"
#include "state_dict/snapshot_meta.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace acc::state_dict {
namespace {

using collectives::ProcessGroup;
using settings::RuntimeSettings;

constexpr std::size_t kSentTile = std::size_t{1} << 20;

/// Ranks of each machine, in order; empty if machines have different numbers of them.
std::vector<std::vector<int>> ranks_by_machine(const sharding::Groups& groups,
                                               const RuntimeSettings& settings,
                                               device::Device& device) {
  const std::array<double, 1> own = {static_cast<double>(settings.identity.node_rank)};
  const auto machines = sharding::all_gather(groups, device, own);
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(settings.identity.num_nodes));
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    ranks.at(static_cast<std::size_t>(machines[rank])).push_back(static_cast<int>(rank));
  }
  const bool alike = std::ranges::all_of(
      ranks, [&](const auto& each) { return each.size() == ranks.front().size(); });
  return alike ? ranks : std::vector<std::vector<int>>{};
}

}  // namespace

std::unique_ptr<NeighbourCopy> NeighbourCopy::make(const RuntimeSettings& settings,
                                                   const sharding::Groups& groups,
                                                   device::Device& device, rendezvous::Store* store,
                                                   const std::function<void()>& check,
                                                   std::string& why) {
  const int machines = settings.identity.num_nodes;
  if (machines < 2 || store == nullptr) {
    return nullptr;
  }
  const auto ranks = ranks_by_machine(groups, settings, device);
  if (ranks.empty()) {
    why = "the machines have different numbers of ranks";
    return nullptr;
  }
  std::unique_ptr<NeighbourCopy> made(new NeighbourCopy);
  made->world_ = groups.world;
  made->device_ = device::open_cpu_device();
  made->settings_ = settings;
  made->settings_.device = settings::Device::cpu;
  made->rate_ = settings.sharding.memory_checkpoint_rate;
  // Keys of its own: the groups of the training have a board of long waits in the same store.
  made->store_ = std::make_unique<rendezvous::PrefixStore>("snapshots", store->clone());
  const int own = settings.identity.rank;
  const int machine = settings.identity.node_rank;
  const auto& here = ranks[static_cast<std::size_t>(machine)];
  const auto local = static_cast<std::size_t>(std::ranges::find(here, own) - here.begin());
  const collectives::GroupFactory factory(made->settings_, made->store_.get(), made->device_,
                                          nullptr, check);
  // From each machine to the next one, in an order in which no two ranks wait for each other.
  std::shared_ptr<ProcessGroup> of_two;
  for (int from = 0; from < machines; ++from) {
    const int to = (from + 1) % machines;
    if (machine != from && machine != to) {
      continue;
    }
    const int sender = ranks[static_cast<std::size_t>(from)][local];
    const int receiver = ranks[static_cast<std::size_t>(to)][local];
    if (machines > 2 || of_two == nullptr) {
      of_two = factory.make({std::min(sender, receiver), std::max(sender, receiver)},
                            fmt::format("snapshots{}", from));
    }
    Lane& lane = machine == from ? made->out_ : made->in_;
    lane = {.group = of_two, .root = sender < receiver ? 0 : 1, .sender = sender};
  }
  const int shards = groups.plan.state_shards();
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    for (const int rank : ranks[other]) {
      made->has_replica_ = made->has_replica_ ||
                           (static_cast<int>(other) != machine && rank % shards == own % shards);
    }
  }
  return made;
}

/// Bytes that are sent: those of a place, or others.
struct NeighbourCopy::Outgoing {
  SnapshotFile::Head head;
  const SnapshotFile* file = nullptr;
  int place = 0;
  std::vector<std::byte> bytes;  ///< if they are not those of the place

  [[nodiscard]] std::uint64_t nbytes() const { return head.meta_nbytes + head.values_nbytes; }
  void read(std::uint64_t at, std::span<std::byte> to) const {
    if (file != nullptr) {
      file->read(place, at, to);
    } else {
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
    }
  }
};

NeighbourCopy::Outgoing NeighbourCopy::outgoing(const SnapshotFile& file, int place) const {
  Outgoing out;
  if (place < 0) {
    return out;
  }
  out.head = file.head(place);
  if (!has_replica_) {
    out.file = &file;
    out.place = place;
    return out;
  }
  const SnapshotMeta all = unpack(file.meta(place));
  const SnapshotMeta less = without_replicated(all);
  const std::string packed = pack(less);
  const auto packed_bytes = std::as_bytes(std::span(packed));
  out.bytes.assign(packed_bytes.begin(), packed_bytes.end());
  const auto add = [&](std::uint64_t at, std::uint64_t nbytes) {
    const std::size_t end = out.bytes.size();
    out.bytes.resize(end + nbytes);
    file.read(place, out.head.meta_nbytes + at, std::span(out.bytes).subspan(end));
  };
  for (const SnapshotMeta::Model& model : all.models) {
    for (const SnapshotMeta::Array& array : model.arrays) {
      if (!array.is_replicated) {
        add(array.at, array.nbytes);
      }
    }
    for (const SnapshotMeta::Buffer& buffer : model.buffers) {
      add(buffer.at, buffer.nbytes);
    }
  }
  out.head.has_all = 0;
  out.head.meta_nbytes = packed.size();
  out.head.values_nbytes = less.values_nbytes;
  out.head.crc32 = checkpoint::crc32(0, out.bytes);
  return out;
}

/// Waits until `nbytes` may have been sent since `begun`.
void NeighbourCopy::limit(std::size_t nbytes, Clock::time_point begun) {
  using Seconds = std::chrono::duration<double>;
  constexpr Seconds kSlice{0.2};
  while (rate_ > 0) {
    const Seconds due(static_cast<double>(nbytes) / static_cast<double>(rate_));
    const Seconds left = due - (Clock::now() - begun);
    if (left.count() <= 0) {
      return;
    }
    std::this_thread::sleep_for(std::min(left, kSlice));
    moved();
  }
}

void NeighbourCopy::exchange_all(const SnapshotFile& file, int place) {
  const Outgoing out = outgoing(file, place);
  // With two machines both directions have one group, whose order is the same on both ranks.
  const bool sends_first = out_.sender < in_.sender;
  const auto both = [&](void* sent, std::size_t sent_nbytes, void* received,
                        std::size_t received_nbytes) {
    collectives::WorkPtr sending;
    collectives::WorkPtr receiving;
    const auto send = [&] {
      if (sent_nbytes > 0) {
        sending = out_.group->broadcast(sent, sent_nbytes, out_.root);
      }
    };
    if (sends_first) {
      send();
    }
    if (received_nbytes > 0) {
      receiving = in_.group->broadcast(received, received_nbytes, in_.root);
    }
    if (!sends_first) {
      send();
    }
    for (const auto& work : {sending, receiving}) {
      if (work != nullptr) {
        work->wait();
      }
    }
  };
  SnapshotFile::Head own = out.head;
  SnapshotFile::Head head;
  both(&own, sizeof own, &head, sizeof head);
  const std::uint64_t arriving = head.complete != 0 ? head.meta_nbytes + head.values_nbytes : 0;
  const int to = file.next(SnapshotFile::kGuests);
  if (arriving > 0) {
    head.number = file.newest(SnapshotFile::kGuests) + 1;
    file.begin(to, head);
  }
  std::vector<std::byte> sent(kSentTile);
  std::vector<std::byte> received(kSentTile);
  const auto begun = Clock::now();
  for (std::uint64_t at = 0; at < std::max(out.nbytes(), arriving); at += kSentTile) {
    const auto part = [at](std::uint64_t all) {
      return static_cast<std::size_t>(all > at ? std::min<std::uint64_t>(kSentTile, all - at) : 0);
    };
    const std::size_t leaving = part(out.nbytes());
    const std::size_t coming = part(arriving);
    out.read(at, std::span(sent).first(leaving));
    both(sent.data(), leaving, received.data(), coming);
    file.write(to, at, std::span(received).first(coming));
    moved();
    limit(static_cast<std::size_t>(at) + leaving, begun);
  }
  if (arriving > 0) {
    file.accept(to, head);
  }
}

// The waiting thread's watch reads the reason from the store, or knows it already.
void NeighbourCopy::stop(const std::string& reason) const noexcept {
  for (const Lane* const lane : {&out_, &in_}) {
    lane->group->abort(reason, Errc::collective);
  }
}

std::optional<std::string> NeighbourCopy::exchange(const SnapshotFile& file, int place) noexcept {
  if (failure_) {
    return std::nullopt;  // it has been reported
  }
  try {
    exchange_all(file, place);
  } catch (const std::exception& error) {
    failure_ = fmt::format("no copies of snapshots on other machines any more: {}", error.what());
    stop(*failure_);
  }
  return failure_;
}

}  // namespace acc::state_dict
