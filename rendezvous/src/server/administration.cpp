// SPDX-License-Identifier: Apache-2.0
#include "server/administration.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "server/admin_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace acc::rendezvous {
namespace {

std::string because(const std::string& what, const std::string& reason) {
  constexpr std::size_t kMaxReason = 1024;
  return reason.empty() ? what : what + ": " + reason.substr(0, kMaxReason);
}

}  // namespace

std::unique_ptr<ProtocolHandler> Administration::open() {
  return std::make_unique<AdminSession>(
      [this](const std::vector<std::string>& words) { return execute(words); });
}

std::string Administration::execute(const std::vector<std::string>& words) {
  const std::string& name = words.front();
  if (!leadership_.leads() && name != "dump") {
    throw Error(Errc::config, leadership_.leader().empty()
                                  ? "this daemon stands by, and none leads at the moment"
                                  : fmt::format("this daemon stands by: ask {}, which leads",
                                                leadership_.leader()));
  }
  const auto expect = [&](std::size_t least, std::size_t most, const char* usage) {
    if (words.size() < least || words.size() > most) {
      throw Error(Errc::config, fmt::format("usage: {}", usage));
    }
  };
  if (name == "list") {
    expect(1, 1, "list");
    return list_jobs();
  }
  if (name == "dump") {
    expect(1, 1, "dump");
    return dump();
  }
  if (name == "drain" || name == "resume") {
    expect(1, 1, "drain, or resume");
    state_.jobs().drain(name == "drain");
    logger(Component::rendezvous)
        .warn("an administrator {}", name == "drain" ? "drains: no new jobs" : "resumes");
    return "";
  }
  if (name == "end") {
    expect(2, 3, "end RUN_ID [REASON]");
    return end_job(words[1], words.size() > 2 ? words[2] : "");
  }
  if (name == "evict") {
    expect(3, 4, "evict RUN_ID HOST [REASON]");
    return evict(words[1], words[2], words.size() > 3 ? words[3] : "");
  }
  throw Error(Errc::config, fmt::format("expected list, dump, drain, resume, end RUN_ID [REASON] "
                                        "or evict RUN_ID HOST [REASON], found \"{}\"",
                                        printable(name)));
}

std::string Administration::list_jobs() {
  std::string text;
  for (const rounds::JobView& job : state_.jobs().view()) {
    text += fmt::format("{}: {}, {} rounds, {} machines\n", printable(job.run_id), job.phase,
                        job.num_rounds, job.machines.size());
    for (const rounds::MachineView& machine : job.machines) {
      text += fmt::format("  {} {} rank {} workers {} pid {} {}\n", printable(machine.host),
                          printable(machine.address),
                          machine.rank ? std::to_string(*machine.rank) : "-",
                          machine.local_world_size, machine.pid, machine.state);
    }
  }
  return text.empty() ? "no jobs\n" : text;
}

/// Returns the whole state but the values of keys.
std::string Administration::dump() {
  std::string text = fmt::format(
      "connections {}\nkeys {}\nkey bytes {}\njob bytes {}\nwatched bytes {}\nbuffered bytes {}\n"
      "draining {}\n",
      clients_.size(), state_.keys().values().size(), state_.keys().bytes(), state_.jobs().bytes(),
      state_.watched_bytes(), clients_.num_buffered(), state_.jobs().is_draining());
  clients_.each_peer([&](const Peer& peer) {
    text += fmt::format("peer {}: {} connections, {} buffered bytes, {} keys, {} wrong proofs\n",
                        peer.name, peer.connections, peer.buffered, peer.keys, peer.failures);
  });
  return text + list_jobs();
}

/// Returns the machines of a job. Throws Error(not_found).
std::vector<rounds::MachineView> Administration::machines_of(const std::string& run_id) {
  std::vector<rounds::MachineView> machines;
  bool is_known = false;
  for (rounds::JobView& job : state_.jobs().view()) {
    if (job.run_id == run_id) {
      is_known = true;
      std::ranges::move(job.machines, std::back_inserter(machines));
    }
  }
  if (!is_known) {
    throw Error(Errc::not_found, fmt::format("no job has the run id \"{}\"", printable(run_id)));
  }
  return machines;
}

/// Ends a job as if each of its machines had asked for it.
std::string Administration::end_job(const std::string& run_id, const std::string& reason) {
  const auto machines = machines_of(run_id);
  const std::string why = because("ended by an administrator", reason);
  logger(Component::rendezvous).warn("job '{}' is {}", printable(run_id), printable(why));
  for (const rounds::MachineView& machine : machines) {
    rounds::Outbox out;
    try {
      state_.jobs().receive(machine.agent,
                            rounds::End{AttemptEnd{.exit_status = 1,
                                                   .restarts = false,
                                                   .cause = AttemptEnd::Cause::other,
                                                   .reason = why}},
                            state_.now(), out);
    } catch (const Error&) {
      continue;  // the end of another machine has removed it
    }
    agents_.deliver(out);
  }
  return fmt::format("{} machines are told\n", machines.size());
}

/// Refuses the machines of a host: their launchers end with the reason.
std::string Administration::evict(const std::string& run_id, const std::string& host,
                                  const std::string& reason) {
  const std::string why = because("evicted by an administrator", reason);
  std::size_t count = 0;
  for (const rounds::MachineView& machine : machines_of(run_id)) {
    if (machine.host != host && machine.address != host) {
      continue;
    }
    ++count;
    if (Connection* const connection = clients_.find(machine.agent)) {
      agents_.refuse(machine.agent, why);
      connection->finish(Connection::ShutdownMode::patient);
    }
    rounds::Outbox out;
    state_.jobs().lose(machine.agent, why, state_.now(), out);
    agents_.deliver(out);
  }
  if (count == 0) {
    throw Error(Errc::not_found, fmt::format("no machine of the job \"{}\" has the host name or "
                                             "address \"{}\"",
                                             printable(run_id), printable(host)));
  }
  logger(Component::rendezvous)
      .warn("{} of job '{}' is {}", printable(host), printable(run_id), printable(why));
  return fmt::format("{} machines are evicted\n", count);
}

}  // namespace acc::rendezvous
