// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "etcd/etcd_client.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace acc::rendezvous {

/// Takes part in the election of the leader among the servers with one EtcdAddress. The leader is
/// the server whose lease holds the key PREFIX/leader. The revision in which it created that key is
/// its *fencing token*: each of its changes is a transaction that compares it, so that nothing is
/// changed by a server that no longer leads.
class EtcdLeadership {
 public:
  /// Called on another thread.
  struct Events {
    std::function<void(std::int64_t token)> on_elected;
    /// After on_elected: it leads no longer, and takes part in the next election.
    std::function<void(const std::string& why)> on_lost;
    /// Another server leads; its address. Called when it changes.
    std::function<void(const std::string& leader)> on_leader;
    /// No member has ever answered, and the reason is in the settings
    /// (EtcdUnavailable::is_refused).
    std::function<void(const std::string& why)> on_refused;
  };

  /// `own_address`: the value of the leader's key, for agents and administrators.
  EtcdLeadership(EtcdAddress address, std::string own_address, Events events);
  /// Gives the leadership up, so that another server can lead at once.
  ~EtcdLeadership();
  EtcdLeadership(const EtcdLeadership&) = delete;
  EtcdLeadership& operator=(const EtcdLeadership&) = delete;

  /// True if this server is certain that it leads: its lease has not run out. Counts the time
  /// during which this process or its machine was suspended.
  [[nodiscard]] bool is_certain() const noexcept;
  /// Gives up the leadership, and takes part in the next election.
  void resign(const std::string& why);

 private:
  using Json = EtcdClient::Json;

  void work();
  void campaign();
  void renew();
  void lose(const std::string& why);
  void revoke() noexcept;
  bool pause(std::chrono::milliseconds time);

  EtcdAddress address_;
  std::string own_address_;
  Events events_;
  EtcdClient client_;
  std::string key_;              // PREFIX/leader in base64
  std::int64_t lease_ = 0;       // 0: none
  std::int64_t renewed_at_ = 0;  // boot time in ms at which it was surely granted or renewed
  std::string leader_;           // the last that was passed to on_leader
  bool leads_ = false;
  bool has_answer_ = false;                     // of a member
  std::atomic<std::int64_t> certain_until_{0};  // boot time in ms
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string resigns_;  // reason
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace acc::rendezvous
