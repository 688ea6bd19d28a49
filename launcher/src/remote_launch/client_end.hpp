// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "remote_launch/control_message.hpp"
#include "supervision/process_end.hpp"

#include <optional>
#include <set>
#include <span>
#include <string>

// Interpretation of the end of a client, as pure functions of its exit status and its answers.
namespace acc::launcher::remote_launch {

/// Progress of the launcher behind a client, from its answers.
struct Heard {
  bool started = false;
  bool joined = false;
  std::optional<control::Ended> ended;
};

/// State of the machines behind a client that runs all of them (pdsh, srun), by host name.
struct Group {
  std::set<std::string> joined;
  std::set<std::string> ended;
  std::set<std::string> lost;  ///< reported as lost by other machines

  /// Updates the state with a launcher's answer.
  void hear(const control::Answer& answer);
  /// True if every machine that joined has ended or is lost, so that the client only waits for lost
  /// machines.
  [[nodiscard]] bool waits_in_vain() const;
};

/// Result of a client.
struct ClientEnd {
  enum class Kind {
    ended,        ///< the launcher ended by itself with `exit_status`
    not_started,  ///< the launcher never joined the job; the other machines must not wait for it
    lost,         ///< the connection broke during the job; the other machines notice by themselves
  };
  Kind kind = Kind::ended;
  int exit_status = 0;
  std::string reason;  ///< "ssh: connect to host node2 port 22: Connection refused"

  bool operator==(const ClientEnd&) const = default;
};

/// Interprets the end of an ssh client. `log_line` is ssh's last own message, or "". `executable`
/// is the acclaunch that was to run. ssh's own failures have exit status 255, which a job may have
/// too; a launcher reports its status in an answer before, which takes precedence.
ClientEnd judge_ssh(const supervision::ProcessEnd& end, const Heard& heard,
                    const std::string& log_line, const std::string& executable);

/// Interprets the end of pdsh or srun, which run all machines and print their own error messages.
ClientEnd judge_group(const supervision::ProcessEnd& end, const std::string& program);

/// Interprets the end of a client that was killed from here. Its exit status has no meaning, but
/// its earlier answers do.
ClientEnd judge_cut(const supervision::ProcessEnd& end, const Heard& heard);

/// Returns the job's exit status: that of the first client in `ends`, which are in rank order, that
/// ended by itself; `otherwise` if none did.
int job_status(std::span<const ClientEnd> ends, int otherwise);

}  // namespace acc::launcher::remote_launch
