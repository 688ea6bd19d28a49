#pragma once

#include "acc/rendezvous/meeting.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// What one machine does to join a job, whichever way ranks are given. Once the key "ready" is set
/// the round is decided: it says how many machines the job has, or why there is none.
class Joining {
 public:
  Joining(AsyncClient& client, std::string run_id, Machine me, Terms terms, MeetingTimes times,
          AsyncClient::Progress progress);

  /// Deletes every claim of this launcher while nothing is decided.
  boost::asio::awaitable<void> leave();

  /// Lays the terms down, or compares them. Throws Error(config) on all machines.
  boost::asio::awaitable<void> agree();

 protected:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  using Milliseconds = AsyncClient::Milliseconds;

  [[nodiscard]] std::string key_of(int machine_rank) const;

  /// What stands under `rank` in the end; `me` where that was free, or its owner a dead launcher
  /// of this PID space.
  Awaitable<Machine> claim(int rank);

  /// Tells everybody who waits, then fails here.
  Awaitable<void> refuse(std::string reason);

  /// These machines are the job, unless it was decided otherwise.
  Awaitable<void> declare_ready(std::vector<Machine> machines);
  Awaitable<bool> is_decided();
  /// True when it was decided within `limit`.
  Awaitable<bool> await_decision(Milliseconds limit);
  /// Once it is decided: the machines. Throws Error(config) where it was decided against the job.
  Awaitable<std::vector<Machine>> decided_machines();

  /// Those who have claimed a rank, by rank. Some may be free in between: machines leave.
  Awaitable<std::vector<Machine>> present();

  [[nodiscard]] Milliseconds elapsed() const;
  [[nodiscard]] Milliseconds left() const { return times_.timeout - elapsed(); }
  /// "…, 3 s of 900 s"
  [[nodiscard]] std::string clock() const;
  [[nodiscard]] std::string timeout_text() const;

  AsyncClient& client_;
  std::string run_id_;
  Machine me_;
  Terms terms_;
  MeetingTimes times_;
  AsyncClient::Progress progress_;

 private:
  [[nodiscard]] std::string ready_key() const;
  [[nodiscard]] std::vector<std::string> ready_keys() const;
  [[nodiscard]] std::vector<std::string> machine_keys() const;
  Awaitable<void> fail(std::string outcome);

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Why `machines` cannot make up num_processes, or "".
std::string wrong_total(const std::vector<Machine>& machines, int num_processes);

}  // namespace acc::rendezvous
