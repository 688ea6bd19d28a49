#pragma once

#include "rounds/membership.hpp"

#include <map>
#include <string>
#include <unordered_map>

namespace acc::rendezvous::rounds {

/// All jobs of a server, by run id. As pure as `Membership`.
class Jobs {
 public:
  /// The first message of an agent names its job, which begins with it. Throws Error(protocol).
  void receive(AgentId agent, AgentMessage message, Time now, Outbox& out);
  /// Nothing happens for an agent that never named a job, or was dropped.
  void lose(AgentId agent, const std::string& why, Time now, Outbox& out);
  void pass(Time now, Outbox& out);
  [[nodiscard]] Time next_deadline() const;
  [[nodiscard]] std::size_t size() const noexcept { return jobs_.size(); }

 private:
  std::map<std::string, Membership> jobs_;
  std::unordered_map<AgentId, std::string> run_ids_;
};

}  // namespace acc::rendezvous::rounds
