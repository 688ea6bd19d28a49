// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/shm/shm_channel.hpp"
#include "tensors/work.hpp"

#include <cstddef>
#include <deque>
#include <list>
#include <vector>

namespace acc::tensors {

/// Messages between two ranks of a host. Each ordered pair of ranks has a ring in shared memory; a
/// message that fits into it is sent at once. A thread moves bytes ("drives") while it waits for a
/// message; detached calls are driven by the mailbox's own thread, which the first one starts. One
/// thread drives at a time, for all messages of the rank: it also empties the rings of messages for
/// which no receive is posted yet, and keeps these in private memory. Thread-safe.
class Mailbox {
 public:
  static constexpr int kAnyRank = -1;
  struct Message;

  /// Collective over the ranks of the channel.
  explicit Mailbox(collectives::ShmChannel& channel);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  WorkPtr send(const std::byte* data, std::size_t nbytes, int to, int tag,
               std::chrono::milliseconds timeout, bool detached);
  WorkPtr receive(std::byte* data, std::size_t nbytes, int from, int tag,
                  std::chrono::milliseconds timeout, bool detached);
  /// Returns when `message` is done; false if the deadline has passed before.
  bool wait(const Message& message, Deadline deadline);
  /// Makes a waiting thread look whether the group is aborted.
  void wake() noexcept;
  [[nodiscard]] bool is_idle() const;

 private:
  struct Ring;
  struct Incoming;
  using MessagePtr = std::shared_ptr<Message>;

  [[nodiscard]] Ring& ring(int from, int to) const noexcept;
  [[nodiscard]] collectives::RankControl::Counter& bell(int rank) const noexcept;
  /// Tells the driving thread of a new message, or starts a thread for a detached one.
  void call_driver(bool detached);
  /// Moves as many bytes as possible without waiting. Returns true if it moved any.
  bool move();
  bool push(int to);
  bool pull(int from);
  void start_of_message(int from);
  void hand_over(Incoming& incoming);
  bool look_for_failures();
  void fail_all(const std::exception_ptr& error);
  /// Until `done` is true, moves bytes and sleeps. Returns false if the deadline has passed.
  template <typename Done>
  bool drive(std::unique_lock<std::mutex>& lock, const Done& done, Deadline deadline);
  void run(const std::stop_token& stop);

  collectives::ShmChannel& channel_;
  collectives::SharedMapping memory_;
  mutable std::mutex mutex_;             ///< guards everything below
  std::condition_variable_any changed_;  ///< for waiting callers: a message is done, or none drives
  std::condition_variable_any ready_;    ///< for the thread
  int spins_ = 0;
  bool driven_ = false;
  std::vector<std::deque<MessagePtr>> outgoing_;     ///< by receiver, in order
  std::list<MessagePtr> receives_;                   ///< posted and not matched, in order
  std::vector<std::shared_ptr<Incoming>> arriving_;  ///< by sender; null between messages
  std::list<std::shared_ptr<Incoming>> unexpected_;  ///< arrived without a receive, in order
  int num_detached_ = 0;                             ///< not done
  int num_unfinished_ = 0;
  std::jthread thread_;
};

/// A send or a receive. Guarded by the mailbox's mutex until it is done.
struct Mailbox::Message : Work {
  Message(std::byte* at, std::size_t size, int other, int label, bool sends,
          std::chrono::milliseconds limit, bool without_waiter)
      : Work(limit),
        data(at),
        nbytes(size),
        peer(other),
        tag(label),
        is_send(sends),
        detached(without_waiter),
        overdue(std::chrono::steady_clock::now() + limit) {}

  std::byte* data;
  std::size_t nbytes;
  int peer;  ///< kAnyRank: a receive from any rank
  int tag;
  bool is_send;
  bool detached;
  std::chrono::steady_clock::time_point overdue;
  std::size_t moved = 0;  ///< bytes of a send that are in the ring, with the header
};

}  // namespace acc::tensors
