// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/jobs.hpp"
#include "server/agent_connections.hpp"
#include "server/clients.hpp"
#include "server/durable_state.hpp"
#include "server/leadership.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// The commands of administrators (docs/rendezvous.md): list, dump, drain, resume, end, evict. Owns
/// nothing.
class Administration {
 public:
  Administration(Clients& clients, DurableState& state, AgentConnections& agents,
                 const Leadership& leadership)
      : clients_(clients), state_(state), agents_(agents), leadership_(leadership) {}

  /// Creates the protocol handler of an administrator.
  std::unique_ptr<ProtocolHandler> open();

 private:
  std::string execute(const std::vector<std::string>& words);
  std::string list_jobs();
  std::string dump();
  std::string end_job(const std::string& run_id, const std::string& reason);
  std::string evict(const std::string& run_id, const std::string& host, const std::string& reason);
  std::vector<rounds::MachineView> machines_of(const std::string& run_id);

  Clients& clients_;
  DurableState& state_;
  AgentConnections& agents_;
  const Leadership& leadership_;
};

}  // namespace acc::rendezvous
