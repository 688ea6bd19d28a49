// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/client_end.hpp"

#include <algorithm>

namespace acc::launcher::remote_launch {
namespace {

using Kind = ClientEnd::Kind;

constexpr int kOfSsh = 255;          // ssh(1): "or with 255 if an error occurred"
constexpr int kNotFound = 127;       // of a shell
constexpr int kNotExecutable = 126;  // of a shell

std::string how(const supervision::ProcessEnd& end, const std::string& program) {
  return end.kind == supervision::ProcessEnd::Kind::exited
             ? program + " ended with status " + std::to_string(end.value)
             : program + " " + (end.kind == supervision::ProcessEnd::Kind::killed ? "was " : "") +
                   end.describe();
}

/// True if ssh itself failed or was killed, rather than the command that it ran.
bool connection_failed(const supervision::ProcessEnd& end) {
  return end.kind != supervision::ProcessEnd::Kind::exited || end.value == kOfSsh;
}

/// Returns the most precise known reason why the launcher of a machine did not start.
std::string why_not_started(const supervision::ProcessEnd& end, const Heard& heard,
                            const std::string& log_line, const std::string& executable) {
  const int status = end.shell_status();
  if (connection_failed(end)) {
    return log_line.empty() ? how(end, "ssh") : log_line;
  }
  if (heard.started) {
    return "acclaunch there ended with status " + std::to_string(status);
  }
  if (status == kNotFound || status == kNotExecutable) {
    return "no executable acclaunch was found there, neither at " + executable +
           " nor in the PATH of the login shell";
  }
  return "its login shell ended with status " + std::to_string(status) +
         " and has not started acclaunch";
}

}  // namespace

void Group::hear(const control::Answer& answer) {
  if (const auto* now_joined = std::get_if<control::Joined>(&answer)) {
    joined.insert(now_joined->host);
    ended.erase(now_joined->host);
    lost.erase(now_joined->host);
  } else if (const auto* now_ended = std::get_if<control::Ended>(&answer)) {
    ended.insert(now_ended->host);
  } else if (const auto* now_lost = std::get_if<control::Lost>(&answer)) {
    lost.insert(now_lost->host);
  }
}

// A lost machine alone does not mean that the job is over: at least one machine must have reported
// its own end.
bool Group::waits_in_vain() const {
  return !lost.empty() && std::ranges::any_of(ended, [this](const std::string& host) {
    return joined.contains(host);
  }) && std::ranges::all_of(joined, [this](const std::string& host) {
    return ended.contains(host) || lost.contains(host);
  });
}

ClientEnd judge_ssh(const supervision::ProcessEnd& end, const Heard& heard,
                    const std::string& log_line, const std::string& executable) {
  const int status = end.shell_status();
  if (heard.ended && !heard.joined && !heard.ended->reason.empty()) {
    return {Kind::not_started, status, heard.ended->reason};
  }
  if (heard.ended) {
    return {Kind::ended, heard.ended->exit_status, ""};
  }
  if (!heard.joined) {
    return {Kind::not_started, status, why_not_started(end, heard, log_line, executable)};
  }
  if (connection_failed(end)) {
    return {Kind::lost, status, log_line.empty() ? how(end, "ssh") : log_line};
  }
  return {Kind::ended, status, ""};
}

ClientEnd judge_group(const supervision::ProcessEnd& end, const std::string& program) {
  return end.kind == supervision::ProcessEnd::Kind::exited
             ? ClientEnd{Kind::ended, end.value, ""}
             : ClientEnd{Kind::lost, end.shell_status(), how(end, program)};
}

ClientEnd judge_cut(const supervision::ProcessEnd& end, const Heard& heard) {
  return heard.joined && heard.ended ? ClientEnd{Kind::ended, heard.ended->exit_status, ""}
                                     : ClientEnd{Kind::lost, end.shell_status(), ""};
}

int job_status(std::span<const ClientEnd> ends, int otherwise) {
  const auto first = std::ranges::find(ends, Kind::ended, &ClientEnd::kind);
  return first == ends.end() ? otherwise : first->exit_status;
}

}  // namespace acc::launcher::remote_launch
