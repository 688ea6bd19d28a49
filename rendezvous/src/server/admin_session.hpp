// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/jobs.hpp"
#include "server/agent_connections.hpp"
#include "server/clients.hpp"
#include "server/durable_state.hpp"
#include "server/leadership.hpp"
#include "server/protocol_handler.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {

/// First bytes of an administrator, the last one is the version (docs/protocol.md).
inline constexpr std::string_view kAdminHello{
    "\xad"
    "adm\x01",
    5};

/// Protocol handler of an administrator: executes commands, one after the other: list, dump, drain,
/// resume, end, evict (docs/rendezvous.md). An Error is the output of a command that failed.
class AdminSession final : public ProtocolHandler {
 public:
  AdminSession(Clients& clients, DurableState& state, AgentConnections& agents,
               const Leadership& leadership)
      : clients_(clients), state_(state), agents_(agents), leadership_(leadership) {}

  bool step(std::string_view& bytes, std::string& out) override;
  [[nodiscard]] bool is_open() const noexcept override { return has_hello_; }
  [[nodiscard]] unsigned cost() const noexcept override { return 1024; }  // visits all jobs

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
  bool has_hello_ = false;
};

}  // namespace acc::rendezvous
