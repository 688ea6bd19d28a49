// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/server.hpp"
#include "etcd/etcd_leadership.hpp"
#include "journal/journal.hpp"
#include "server/clients.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace acc::rendezvous {

/// The part of this server among several (ServerOptions::etcd): whether it leads or stands by, and
/// for whom. A server without others leads from its beginning to its end. Owns the connection with
/// the election, whose events it takes into the event loop.
class Leadership {
 public:
  struct Calls {
    /// This server is elected: recovers the state that the last leader has left in this storage.
    /// Nothing of it may be shown while `is_certain` is false. May throw LeadershipLost.
    std::function<void(std::unique_ptr<JournalStorage> storage, std::function<bool()> is_certain)>
        elected;
    /// After `elected`: ends all connections without another byte, and forgets everything.
    std::function<void()> lost;
  };

  /// `options` must outlive it.
  Leadership(Clients& clients, const ServerOptions& options, Calls calls);

  /// Takes part in the election, if there are several servers.
  void take_part();
  /// Leaves the election, and joins its thread.
  void end() { election_.reset(); }
  [[nodiscard]] bool leads() const noexcept { return leads_; }
  /// While it stands by: the server that leads; "": none.
  [[nodiscard]] const std::string& leader() const noexcept { return leader_; }
  /// Gives up the leadership, and takes part in the next election.
  void resign(const std::string& why) { election_->resign(why); }

 private:
  template <typename Argument>
  auto in_loop(void (Leadership::*what)(const Argument&));
  void lead(const std::int64_t& token);
  void stand_by(const std::string& why);
  void learn_leader(const std::string& leader);
  void refuse_etcd(const std::string& why);

  Clients& clients_;
  const ServerOptions& options_;
  Calls calls_;
  bool leads_;
  std::string leader_;
  std::optional<EtcdLeadership> election_;
};

}  // namespace acc::rendezvous
