// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/collectives/process_group.hpp"
#include "collectives/gloo/background.hpp"
#include "collectives/gloo/mesh.hpp"
#include "collectives/gloo/stall_watch.hpp"
#include "collectives/group_spec.hpp"
#include "collectives/shm/control_block.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// The algorithms of Gloo groups are functions of GlooRanks, written with Gloo's point-to-point
// messages, not with Gloo's own collectives: those run one at a time and block the caller, whereas
// several of ours must be in flight; and they sum in an order that depends on the algorithm,
// whereas ours sum in rank order and give bitwise equal results on all ranks.
namespace acc::collectives {

class Exchange;

/// Bytes that a rank has sent, counted on any thread.
struct SentCounts {
  std::atomic<std::int64_t> gathered = 0;
  std::atomic<std::int64_t> reduced = 0;
  std::atomic<std::int64_t> other = 0;

  [[nodiscard]] std::atomic<std::int64_t>& of(OpKind kind) noexcept {
    const bool reduces = kind == OpKind::reduce_scatter || kind == OpKind::all_reduce;
    return reduces ? reduced : kind == OpKind::all_gather ? gathered : other;
  }
};

/// The connected ranks of a Gloo group.
struct GlooRanks {
  GroupSpec spec;
  /// The other ranks, in the order of messages to them. Each rank begins with the next one, so that
  /// not all send to the same rank at once.
  std::vector<int> peers = {};
  std::unique_ptr<Mesh> mesh = nullptr;
  std::unique_ptr<StallWatch> watch = nullptr;
  /// Its thread is started by the first use.
  std::unique_ptr<Background> background = std::make_unique<Background>();
  SentCounts sent = {};

  [[nodiscard]] std::size_t rank() const noexcept { return static_cast<std::size_t>(spec.rank); }
  [[nodiscard]] std::size_t size() const noexcept { return spec.ranks.size(); }
  [[nodiscard]] std::string describe() const;
  /// Begins a phase of collective `number`: makes its tag, and tells the watch.
  std::shared_ptr<Exchange> start(std::uint32_t number, OpKind kind, DType dtype,
                                  std::uint64_t count, bool second_phase = false);
};

/// Addresses of the ranks' slices of `out`.
std::vector<void*> slices(const GlooRanks& ranks, void* out, std::size_t nbytes);
/// Sends `shard` to every rank, and receives the shard of rank r at places[r].
WorkPtr exchange_shards(const GlooRanks& ranks, std::shared_ptr<Exchange> work, const void* shard,
                        const std::vector<void*>& places, std::size_t shard_nbytes);
/// The same for `shard`, [numel] of `dtype`, in `code`. Also writes places[rank()]: every rank
/// reads what was sent.
WorkPtr exchange_coded(const GlooRanks& ranks, std::shared_ptr<Exchange> work, const void* shard,
                       std::vector<void*> places, std::size_t numel, DType dtype, BlockCode code);
/// A sum over ranks of one part of the array of each rank.
struct RankSum {
  std::uint32_t number;
  OpKind kind;
  std::vector<void*> parts;  ///< of this rank's array, the part that rank r sums; not written
  std::size_t numel;         ///< of a part
  DType dtype;
  float* out;  ///< the sum of all ranks' parts[rank()]; may be parts[rank()]
  ReduceOptions options;
  /// With a code: this rank sums its own part as the others receive it.
  bool own_as_sent = false;
};
std::shared_ptr<Exchange> sum_parts(GlooRanks& ranks, const RankSum& sum);

/// Messages between ranks and the computation that follows them. All messages are in flight from
/// the issue on; `wait` waits for the receives, then for the sends (after which this rank's input
/// may be overwritten), then runs the computation.
class Exchange final : public Work {
 public:
  /// sent: counts the bytes of sent messages.
  Exchange(GlooRanks& ranks, std::string call, std::uint64_t tag, std::atomic<std::int64_t>& sent)
      : ranks_(ranks), call_(std::move(call)), tag_(tag), sent_(sent) {}

  void send(int peer, const void* data, std::size_t nbytes) {
    guarded(peer, [&] {
      auto message = ranks_.mesh->message(const_cast<void*>(data), nbytes);
      message->send(peer, tag_);
      sends_.push_back({peer, std::move(message)});
    });
    sent_ += static_cast<std::int64_t>(nbytes);
  }
  void receive(int peer, void* data, std::size_t nbytes) {
    guarded(peer, [&] {
      auto message = ranks_.mesh->message(data, nbytes);
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
    ranks_.watch->begin([this] { cancel(); });
    const bool complete = wait_for_messages([this](Posted& posted, bool receiving) {
      bool arrived = false;
      guarded(posted.peer, [&] { arrived = posted.wait(receiving, ranks_.spec.timeout); });
      return arrived;
    });
    if (!complete) {
      fail_stopped();
    }
    ranks_.watch->end();
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
    auto verdict = ranks_.watch->give_up();
    if (!verdict) {
      verdict = ranks_.watch->abort_reason();
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
        ranks_.watch->awaits(each.peer);
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
      fail_for(peer, error, std::chrono::steady_clock::now() - begin >= ranks_.spec.timeout);
    }
  }

  /// Translates an exception of Gloo: to a published abort if there is one, to a timeout if the
  /// time is over, else to the loss of `peer`. Gloo throws the same type for all of these.
  [[noreturn]] void fail_for(int peer, const std::exception& error, bool timed_out) {
    ranks_.watch->give_up();
    const int who = ranks_.spec.ranks[static_cast<std::size_t>(peer)];
    // Gloo closes all connections of a rank whose wait times out, before that rank can tell why.
    const auto told_by =
        std::chrono::steady_clock::now() + (timed_out ? std::chrono::milliseconds(0) : kTellTime);
    auto abort = ranks_.watch->abort_reason();
    while (!abort && std::chrono::steady_clock::now() < told_by) {
      std::this_thread::sleep_for(kTellInterval);
      abort = ranks_.watch->abort_reason();
    }
    if (abort) {
      fail(*abort);
    }
    if (timed_out) {
      int late = -1;
      const std::string reason = ranks_.spec.reason_of_timeout(peer, call_, late);
      fail({reason, late, Errc::timeout});
    }
    fail({fmt::format("lost rank {} in {}: {}", who, call_, error.what()), who, Errc::peer_lost});
  }

  [[noreturn]] void fail(const StallWatch::Verdict& why) {
    ranks_.background->stop();
    ranks_.watch->publish_abort(why);
    throw Error(why.code, why.reason, why.at_fault);
  }

  GlooRanks& ranks_;
  std::string call_;
  std::uint64_t tag_;
  std::atomic<std::int64_t>& sent_;
  std::shared_ptr<void> kept_;
  std::vector<std::byte> scratch_;  ///< messages point into it, so it is destroyed after them
  std::vector<Posted> sends_;
  std::vector<Posted> receives_;
  std::function<void()> finish_;
  std::atomic<int> awaited_ = 0;  ///< peer of the message that is waited for
  bool done_ = false;
};

}  // namespace acc::collectives
