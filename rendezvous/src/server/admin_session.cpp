// SPDX-License-Identifier: Apache-2.0
#include "server/admin_session.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace acc::rendezvous {
namespace {

constexpr std::size_t kMaxCommandBytes = 64 * 1024;
constexpr std::size_t kLengthSize = 4;

/// Splits a command into its words, each of which ends with a zero byte.
std::vector<std::string> words_of(std::string_view command) {
  if (command.empty()) {
    throw Error(Errc::protocol, "an administrator's command is empty");
  }
  if (!command.ends_with('\0')) {
    throw Error(Errc::protocol, "a word of an administrator's command has no end");
  }
  const auto words = split(command, '\0');
  return {words.begin(), words.end()};
}

std::string because(const std::string& what, const std::string& reason) {
  constexpr std::size_t kMaxReason = 1024;
  return reason.empty() ? what : what + ": " + reason.substr(0, kMaxReason);
}

}  // namespace

bool AdminSession::step(std::string_view& bytes, std::string& out) {
  if (!has_hello_) {
    if (bytes.substr(0, kAdminHello.size()) != kAdminHello.substr(0, bytes.size())) {
      throw Error(Errc::protocol, "not an administrator of this version");
    }
    if (bytes.size() < kAdminHello.size()) {
      return false;
    }
    has_hello_ = true;
    bytes.remove_prefix(kAdminHello.size());
  }
  std::uint32_t size = 0;
  if (bytes.size() < kLengthSize) {
    return false;
  }
  std::memcpy(&size, bytes.data(), kLengthSize);
  if (size > kMaxCommandBytes) {
    throw Error(Errc::protocol, "an administrator's command is too long");
  }
  if (bytes.size() < kLengthSize + size) {
    return false;
  }
  const auto words = words_of(bytes.substr(kLengthSize, size));
  bytes.remove_prefix(kLengthSize + size);
  std::string answer(1, '\0');
  try {
    answer += execute(words);
  } catch (const Error& error) {
    answer = std::string(1, '\1') + error.what();
  }
  const auto length = static_cast<std::uint32_t>(answer.size());
  out.append(reinterpret_cast<const char*>(&length), kLengthSize);
  out += answer;
  return true;
}

std::string AdminSession::execute(const std::vector<std::string>& words) {
  const std::string& name = words.front();
  if (!leadership_.leads() && name != "dump") {
    throw Error(Errc::not_supported, leadership_.leader().empty()
                                         ? "this daemon stands by, and none leads at the moment"
                                         : fmt::format("this daemon stands by: ask {}, which leads",
                                                       leadership_.leader()));
  }
  const auto expect = [&](std::size_t least, std::size_t most, const char* usage) {
    if (words.size() < least || words.size() > most) {
      throw Error(Errc::invalid_argument, fmt::format("usage: {}", usage));
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
  throw Error(Errc::invalid_argument,
              fmt::format("expected list, dump, drain, resume, end RUN_ID [REASON] "
                          "or evict RUN_ID HOST [REASON], found \"{}\"",
                          printable(name)));
}

std::string AdminSession::list_jobs() {
  std::string text;
  for (const rounds::JobView& job : state_.jobs().view()) {
    text += fmt::format("{}: {}, {} rounds, {} machines\n", printable(job.run_id), job.phase,
                        job.num_rounds, job.machines.size());
    for (const auto& [agent, machine, rank, state] : job.machines) {
      text += fmt::format("  {} {} rank {} workers {} pid {} {}\n", printable(machine.host),
                          printable(machine.address), rank ? std::to_string(*rank) : "-",
                          machine.local_world_size, machine.pid, state);
    }
  }
  return text.empty() ? "no jobs\n" : text;
}

/// Returns the whole state but the values of keys.
std::string AdminSession::dump() {
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
std::vector<rounds::MachineView> AdminSession::machines_of(const std::string& run_id) {
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
std::string AdminSession::end_job(const std::string& run_id, const std::string& reason) {
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
std::string AdminSession::evict(const std::string& run_id, const std::string& host,
                                const std::string& reason) {
  const std::string why = because("evicted by an administrator", reason);
  std::size_t count = 0;
  for (const auto& [agent, machine, rank, state] : machines_of(run_id)) {
    if (machine.host != host && machine.address != host) {
      continue;
    }
    ++count;
    if (Connection* const connection = clients_.find(agent)) {
      agents_.refuse(agent, why);
      connection->finish(Connection::ShutdownMode::patient);
    }
    rounds::Outbox out;
    state_.jobs().lose(agent, why, state_.now(), out);
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
