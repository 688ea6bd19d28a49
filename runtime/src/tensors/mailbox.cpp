// SPDX-License-Identifier: Apache-2.0
#include "tensors/mailbox.hpp"

#include "acc/base/error.hpp"
#include "collectives/shm/futex.hpp"
#include "kernels/stream_copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace acc::tensors {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using collectives::RankControl;
using collectives::SharedMapping;

// Bytes of a ring; a message of 1 MiB fits as a whole. Pages of a ring that is never used take no
// memory.
constexpr std::size_t kRingNbytes = std::size_t{2} << 20;
// A long message is handed over in parts of this size, so that both sides copy at the same time.
constexpr std::size_t kPart = std::size_t{128} << 10;
// The thread of the mailbox leaves a message to the caller for this long, because most callers wait
// for it right away.
constexpr auto kGrace = 1ms;
// Times that a thread looks for news before it sleeps, if each rank has a core.
constexpr int kSpins = 300;
// Longest sleep; between two sleeps the driver looks for dead peers, aborts and timeouts.
constexpr auto kLookInterval = 50ms;

/// Begin of each message in a ring.
struct Envelope {
  std::uint64_t nbytes;
  std::int32_t tag;
  std::uint32_t unused;
};

void ring_bell(RankControl::Counter& bell) noexcept {
  // Sequentially consistent like the accesses in `sleep_until_bell`: no wake-up is lost.
  bell.value.fetch_add(1);
  if (bell.sleepers.load() != 0) {
    collectives::futex_wake_all(bell.value);
  }
}

void sleep_until_bell(RankControl::Counter& bell, std::uint32_t seen, int spins) noexcept {
  for (int i = 0; i < spins; ++i) {
    if (bell.value.load(std::memory_order_relaxed) != seen) {
      return;
    }
    collectives::pause_cpu();
  }
  bell.sleepers.fetch_add(1);
  if (bell.value.load() == seen) {
    collectives::futex_wait(bell.value, seen, kLookInterval);
  }
  bell.sleepers.fetch_sub(1);
}

}  // namespace

/// Bytes on their way from one rank to another. `written` and `read` only grow.
struct Mailbox::Ring {
  alignas(64) std::atomic<std::uint64_t> written;  ///< stored by the sender
  alignas(64) std::atomic<std::uint64_t> read;     ///< stored by the receiver
  alignas(64) std::array<std::byte, kRingNbytes> data;

  void put(const std::byte* from, std::size_t nbytes, std::uint64_t at) noexcept {
    const std::size_t begin = at % kRingNbytes;
    const std::size_t first = std::min(nbytes, kRingNbytes - begin);
    kernels::stream_copy(data.data() + begin, from, first);
    kernels::stream_copy(data.data(), from + first, nbytes - first);
  }
  void get(std::byte* to, std::size_t nbytes, std::uint64_t at) const noexcept {
    const std::size_t begin = at % kRingNbytes;
    const std::size_t first = std::min(nbytes, kRingNbytes - begin);
    std::memcpy(to, data.data() + begin, first);
    std::memcpy(to + first, data.data(), nbytes - first);
  }
};

/// A message of which at least the envelope has arrived.
struct Mailbox::Incoming {
  int from;
  int tag;
  std::size_t nbytes;
  std::vector<std::byte> kept = {};  ///< the content, if no receive was posted in time
  std::byte* to = nullptr;
  std::size_t received = 0;
  MessagePtr receiver = nullptr;  ///< null until a receive matches

  [[nodiscard]] bool matches(const Message& receive) const noexcept {
    return tag == receive.tag && (receive.peer == kAnyRank || receive.peer == from);
  }
};

Mailbox::Mailbox(collectives::ShmChannel& channel) : channel_(channel) {
  const auto size = static_cast<std::size_t>(channel.size());
  const std::size_t nbytes = size * sizeof(RankControl::Counter) + size * size * sizeof(Ring);
  // All zero is the state in which no bell has rung and all rings are empty.
  memory_ = channel.rank() == 0 ? channel.make_shared(nbytes) : channel.take_shared(nbytes);
  memory_.close_descriptor();
  outgoing_.resize(size);
  spins_ = size <= std::thread::hardware_concurrency() ? kSpins : 0;
  arriving_.resize(size);
}

Mailbox::~Mailbox() {
  thread_.request_stop();
  ready_.notify_all();
  ring_bell(bell(channel_.rank()));
}

Mailbox::Ring& Mailbox::ring(int from, int to) const noexcept {
  const auto size = static_cast<std::size_t>(channel_.size());
  auto* const rings = reinterpret_cast<Ring*>(memory_.data() + size * sizeof(RankControl::Counter));
  return rings[static_cast<std::size_t>(from) * size + static_cast<std::size_t>(to)];
}

RankControl::Counter& Mailbox::bell(int rank) const noexcept {
  return reinterpret_cast<RankControl::Counter*>(memory_.data())[rank];
}

void Mailbox::call_driver(bool detached) {
  if (detached) {
    if (!thread_.joinable()) {
      thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    }
    ready_.notify_one();
  }
  if (driven_) {
    ring_bell(bell(channel_.rank()));
  }
}

WorkPtr Mailbox::send(const std::byte* data, std::size_t nbytes, int to, int tag,
                      std::chrono::milliseconds timeout, bool detached) {
  channel_.throw_if_aborted();
  auto message = std::make_shared<Message>(const_cast<std::byte*>(data), nbytes, to, tag, true,
                                           timeout, detached);
  const std::lock_guard lock(mutex_);
  outgoing_[static_cast<std::size_t>(to)].push_back(message);
  ++num_unfinished_;
  num_detached_ += detached ? 1 : 0;
  if (!driven_) {
    push(to);
  }
  if (!message->done) {  // most messages fit into the ring, so that no other thread is needed
    call_driver(detached);
  }
  return message;
}

WorkPtr Mailbox::receive(std::byte* data, std::size_t nbytes, int from, int tag,
                         std::chrono::milliseconds timeout, bool detached) {
  channel_.throw_if_aborted();
  auto message = std::make_shared<Message>(data, nbytes, from, tag, false, timeout, detached);
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      unexpected_, [&](const auto& incoming) { return incoming->matches(*message); });
  ++num_unfinished_;
  num_detached_ += detached ? 1 : 0;
  call_driver(detached);
  if (found == unexpected_.end()) {
    receives_.push_back(message);
  } else {
    const std::shared_ptr<Incoming> incoming = *found;
    unexpected_.erase(found);
    incoming->receiver = message;
    if (incoming->received == incoming->nbytes) {
      hand_over(*incoming);
    }
  }
  return message;
}

void Mailbox::hand_over(Incoming& incoming) {
  Message& receiver = *incoming.receiver;
  receiver.source = incoming.from;
  --num_unfinished_;
  num_detached_ -= receiver.detached ? 1 : 0;
  if (incoming.nbytes != receiver.nbytes) {
    const std::string reason =
        fmt::format("rank {} sent a message of {} bytes with tag {}, rank {} receives {}",
                    channel_.global_rank(incoming.from), incoming.nbytes, incoming.tag,
                    channel_.global_rank(channel_.rank()), receiver.nbytes);
    channel_.abort(reason, -1);
    receiver.error = std::make_exception_ptr(Error(Errc::collective, reason));
  } else if (!incoming.kept.empty()) {
    std::memcpy(receiver.data, incoming.kept.data(), incoming.nbytes);
  }
  receiver.done = true;
}

bool Mailbox::push(int to) {
  auto& queue = outgoing_[static_cast<std::size_t>(to)];
  Ring& way = ring(channel_.rank(), to);
  bool moved = false;
  while (!queue.empty()) {
    Message& message = *queue.front();
    const Envelope envelope{message.nbytes, message.tag, 0};
    const std::uint64_t at = way.written.load(std::memory_order_relaxed);
    const std::uint64_t in_ring = at - way.read.load(std::memory_order_acquire);
    std::size_t room = in_ring > kRingNbytes ? 0 : kRingNbytes - in_ring;
    std::size_t put = 0;
    if (message.moved == 0 && room >= sizeof envelope) {
      way.put(reinterpret_cast<const std::byte*>(&envelope), sizeof envelope, at);
      put = sizeof envelope;
      room -= put;
    }
    if (message.moved + put >= sizeof envelope) {
      const std::size_t begin = message.moved + put - sizeof envelope;
      const std::size_t length = std::min({room, message.nbytes - begin, kPart});
      way.put(message.data + begin, length, at + put);
      put += length;
    }
    if (put == 0 && message.moved != sizeof envelope + message.nbytes) {
      break;
    }
    message.moved += put;
    way.written.store(at + put, std::memory_order_release);
    ring_bell(bell(to));
    moved = true;
    if (message.moved == sizeof envelope + message.nbytes) {
      --num_unfinished_;
      num_detached_ -= message.detached ? 1 : 0;
      message.done = true;
      queue.pop_front();
    }
  }
  return moved;
}

void Mailbox::start_of_message(int from) {
  Envelope envelope{};
  Ring& way = ring(from, channel_.rank());
  const std::uint64_t at = way.read.load(std::memory_order_relaxed);
  way.get(reinterpret_cast<std::byte*>(&envelope), sizeof envelope, at);
  way.read.store(at + sizeof envelope, std::memory_order_release);
  auto incoming = std::make_shared<Incoming>(
      Incoming{.from = from, .tag = envelope.tag, .nbytes = envelope.nbytes});
  const auto receive = std::ranges::find_if(
      receives_, [&](const MessagePtr& message) { return incoming->matches(*message); });
  if (receive != receives_.end() && (*receive)->nbytes == incoming->nbytes) {
    incoming->to = (*receive)->data;
  } else {
    incoming->kept.resize(incoming->nbytes);
    incoming->to = incoming->kept.data();
  }
  if (receive != receives_.end()) {
    incoming->receiver = *receive;
    receives_.erase(receive);
  } else {
    unexpected_.push_back(incoming);
  }
  arriving_[static_cast<std::size_t>(from)] = std::move(incoming);
}

bool Mailbox::pull(int from) {
  Ring& way = ring(from, channel_.rank());
  auto& incoming = arriving_[static_cast<std::size_t>(from)];
  bool moved = false;
  while (true) {
    const std::uint64_t at = way.read.load(std::memory_order_relaxed);
    const std::uint64_t available = way.written.load(std::memory_order_acquire) - at;
    if (available > kRingNbytes) {
      channel_.fail(fmt::format("rank {} has damaged its messages to rank {}",
                                channel_.global_rank(from), channel_.global_rank(channel_.rank())),
                    channel_.global_rank(from));
    }
    if (!incoming) {
      if (available < sizeof(Envelope)) {
        break;
      }
      start_of_message(from);
    } else {
      const std::size_t length =
          std::min<std::size_t>({available, incoming->nbytes - incoming->received, kPart});
      if (length == 0 && incoming->received != incoming->nbytes) {
        break;
      }
      way.get(incoming->to + incoming->received, length, at);
      way.read.store(at + length, std::memory_order_release);
      incoming->received += length;
    }
    moved = true;
    if (incoming->received == incoming->nbytes) {
      const std::shared_ptr<Incoming> complete = std::exchange(incoming, nullptr);
      if (complete->receiver) {
        hand_over(*complete);
      }
    }
  }
  if (moved) {
    ring_bell(bell(from));  // there is room in the ring
  }
  return moved;
}

bool Mailbox::move() {
  bool moved = false;
  for (int r = 0; r < channel_.size(); ++r) {
    moved |= push(r);
    moved |= pull(r);
  }
  return moved;
}

// A peer may have written its last message just before its end, so the rings are read once more
// after the end was seen.
bool Mailbox::look_for_failures() {
  channel_.throw_if_aborted();
  std::vector<const char*> ends;
  for (int r = 0; r < channel_.size(); ++r) {
    ends.push_back(r == channel_.rank() ? nullptr : channel_.end_of(r));
  }
  const bool moved = move();
  const auto check = [&](const Message& message) {
    const int me = channel_.global_rank(channel_.rank());
    const char* const action = message.is_send ? "received a message of" : "sent a message to";
    const std::string text =
        fmt::format("rank {} with tag {} ({} bytes)", me, message.tag, message.nbytes);
    int ended = message.peer;
    if (message.peer == kAnyRank) {
      const auto others = std::ranges::count(ends, nullptr) - 1;  // not this rank
      ended = others == 0 && channel_.size() > 1 ? (channel_.rank() == 0 ? 1 : 0) : -1;
    }
    if (ended >= 0 && ends[static_cast<std::size_t>(ended)] != nullptr) {
      channel_.fail(fmt::format("rank {} {} before it {} {}", channel_.global_rank(ended),
                                ends[static_cast<std::size_t>(ended)], action, text),
                    channel_.global_rank(ended));
    }
    if (Clock::now() > message.overdue) {
      if (message.peer == kAnyRank) {
        const std::string reason = fmt::format("timeout: no rank {} {} within {} ms", action, text,
                                               message.timeout.count());
        channel_.abort(reason, -1);
        throw Error(Errc::timeout, reason);
      }
      const int late = channel_.late_rank(message.peer).rank;
      std::string reason =
          fmt::format("timeout: rank {} has not {} {} within {} ms",
                      channel_.global_rank(message.peer), action, text, message.timeout.count());
      if (late != message.peer) {
        reason += fmt::format(": it waits, and rank {} is late", channel_.global_rank(late));
      }
      channel_.abort(reason, channel_.global_rank(late));
      throw Error(Errc::timeout, reason, channel_.global_rank(late));
    }
  };
  for (const auto& queue : outgoing_) {
    for (const MessagePtr& message : queue) {
      check(*message);
    }
  }
  for (const MessagePtr& message : receives_) {
    check(*message);
  }
  for (const auto& incoming : arriving_) {
    if (incoming && incoming->receiver) {
      check(*incoming->receiver);
    }
  }
  return moved;
}

void Mailbox::fail_all(const std::exception_ptr& error) {
  const auto fail = [&](const MessagePtr& message) {
    if (message && !message->done) {
      message->error = error;
      message->done = true;
    }
  };
  for (auto& queue : outgoing_) {
    std::ranges::for_each(queue, fail);
    queue.clear();
  }
  std::ranges::for_each(receives_, fail);
  receives_.clear();
  for (const auto& incoming : arriving_) {
    fail(incoming ? incoming->receiver : nullptr);
  }
  num_unfinished_ = 0;
  num_detached_ = 0;
}

template <typename Done>
bool Mailbox::drive(std::unique_lock<std::mutex>& lock, const Done& done, Deadline deadline) {
  driven_ = true;
  auto& own_bell = bell(channel_.rank());
  auto looked = Clock::now();
  bool in_time = true;
  while (!done() && in_time) {
    const std::uint32_t seen = own_bell.value.load();
    const int unfinished = num_unfinished_;
    bool moved = false;
    try {
      moved = move();
      if (const auto now = Clock::now(); !done() && now - looked >= kLookInterval) {
        moved |= look_for_failures();
        looked = now;
      }
    } catch (...) {
      fail_all(std::current_exception());
    }
    if (num_unfinished_ != unfinished) {
      changed_.notify_all();
    }
    if (!moved && !done()) {
      lock.unlock();
      sleep_until_bell(own_bell, seen, spins_);
      lock.lock();
    }
    in_time = !deadline || Clock::now() < *deadline;
  }
  driven_ = false;
  changed_.notify_all();
  if (num_detached_ > 0) {
    ready_.notify_one();
  }
  return in_time || done();
}

bool Mailbox::wait(const Message& message, Deadline deadline) {
  if (message.done) {
    return true;
  }
  channel_.own().awaits_message.store(collectives::Awaited{message.peer}.encode());
  std::unique_lock lock(mutex_);
  const auto done = [&] { return message.done.load(); };
  while (!done()) {
    if (!driven_) {
      if (!drive(lock, done, deadline)) {
        return false;
      }
      continue;
    }
    const auto can_go_on = [&] { return done() || !driven_; };
    if (!deadline) {
      changed_.wait(lock, can_go_on);
    } else if (!changed_.wait_until(lock, *deadline, can_go_on)) {
      return false;
    }
  }
  if (!message.error) {  // else it stays: the timeouts of other ranks have to find it
    channel_.own().awaits_message.store(0);
  }
  return true;
}

void Mailbox::wake() noexcept {
  ring_bell(bell(channel_.rank()));
}

bool Mailbox::is_idle() const {
  const std::lock_guard lock(mutex_);
  return num_unfinished_ == 0;
}

void Mailbox::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (ready_.wait(lock, stop, [this] { return num_detached_ > 0 && !driven_; })) {
    ready_.wait_for(lock, stop, kGrace, [] { return false; });
    if (stop.stop_requested()) {
      return;
    }
    if (!driven_) {
      const auto done = [&] { return num_detached_ == 0 || stop.stop_requested(); };
      drive(lock, done, std::nullopt);
    }
  }
}

}  // namespace acc::tensors
