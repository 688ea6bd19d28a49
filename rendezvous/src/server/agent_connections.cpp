// SPDX-License-Identifier: Apache-2.0
#include "server/agent_connections.hpp"

#include "acc/base/error.hpp"
#include "server/agent_session.hpp"

#include <utility>
#include <variant>

namespace acc::rendezvous {

AgentConnections::AgentConnections(Clients& clients, DurableState& state)
    : clients_(clients), state_(state), timer_(clients.turns(), [this] { pass_deadlines(); }) {}

std::unique_ptr<ProtocolHandler> AgentConnections::open(Id id, std::optional<std::string> run_id) {
  ids_.insert(id);
  return std::make_unique<AgentSession>(
      [this, id, job = std::move(run_id)](rounds::AgentMessage message) {
        const auto* enter = std::get_if<rounds::Enter>(&message);
        if (job && enter != nullptr && enter->run_id != *job) {
          refuse(id, "the proof of the token is for another job");
          throw Error(Errc::protocol, "an agent that proved the token for another job");
        }
        receive(id, std::move(message));
      });
}

std::unique_ptr<ProtocolHandler> AgentConnections::redirect(Id id, const std::string& leader) {
  return std::make_unique<AgentSession>(
      [this, id, &leader](const rounds::AgentMessage& /*message*/) {
        send(id, rounds::Elsewhere{leader.substr(0, rounds::kMaxNameBytes)});
        clients_.at(id).finish(Connection::ShutdownMode::patient);
      });
}

void AgentConnections::closed(Id id) {
  const bool was_agent = ids_.erase(id) > 0;
  // A server that recovers expects its agents again: their connections end with this process.
  if (was_agent && !(clients_.is_stopping() && state_.has_log())) {
    rounds::Outbox out;
    state_.jobs().lose(id, "its connection has ended", state_.now(), out);
    deliver(out);
  }
}

void AgentConnections::retire(std::function<void()> done) {
  state_.jobs().close();
  retired_ = std::move(done);
}

void AgentConnections::go_on_retiring() {
  if (retired_ && !state_.jobs().is_refusing()) {
    clients_.stop_accepting();
    if (ids_.empty()) {
      std::exchange(retired_, nullptr)();  // may destroy the server: nothing may follow
    }
  }
}

void AgentConnections::refuse(Id id, const std::string& reason) {
  send(id, rounds::Dropped{rounds::Dropped::Why::config, reason});
}

void AgentConnections::send(Id id, const rounds::ServerMessage& message) {
  std::string frame;
  rounds::encode(message, frame);
  clients_.at(id).send(frame);
}

/// Passes an agent's message to its job and delivers the resulting messages. An exception ends the
/// agent's connection; if there is no memory for its job, it is told so and may try again.
void AgentConnections::receive(Id id, rounds::AgentMessage message) {
  rounds::Outbox out;
  try {
    state_.receive(id, std::move(message), out);
  } catch (const Error& error) {
    if (error.code() == Errc::not_supported) {
      refuse(id, error.what());
    } else if (error.code() == Errc::out_of_memory) {
      send(id, rounds::Dropped{rounds::Dropped::Why::lost, error.what()});
    }
    throw;
  }
  if (state_.jobs().job_of(id)) {
    clients_.at(id).make_urgent();
  }
  deliver(out);
}

void AgentConnections::deliver(const rounds::Outbox& out) {
  for (const rounds::OutgoingMessage& outgoing : out) {
    Connection* const connection = clients_.find(outgoing.to);
    if (connection == nullptr) {
      continue;  // closed meanwhile
    }
    connection->send(*outgoing.frame);
    if (outgoing.is_last) {
      connection->finish(outgoing.is_lost ? Connection::ShutdownMode::brief
                                          : Connection::ShutdownMode::patient);
    }
  }
  state_.share_memory();
  await_deadline();
}

void AgentConnections::await_deadline() {
  if (!clients_.is_stopping()) {
    timer_.at(state_.next_deadline());
  }
}

void AgentConnections::pass_deadlines() {
  // Reads all heartbeats that have arrived before it decides which agents are silent. If this
  // process was delayed, they wait in the sockets' receive buffers.
  clients_.turns().read_all();
  rounds::Outbox due;
  state_.jobs().pass(state_.now(), due);
  deliver(due);
}

}  // namespace acc::rendezvous
