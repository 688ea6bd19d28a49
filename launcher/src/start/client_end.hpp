#pragma once

#include "start/control_message.hpp"
#include "supervision/process_end.hpp"

#include <optional>
#include <set>
#include <span>
#include <string>

// What the end of a client means, apart from processes and time.
namespace acc::launcher {

/// How far the launcher behind a client has come, by its own answers.
struct Heard {
  bool started = false;
  bool joined = false;
  std::optional<control::Ended> ended;
};

/// The machines behind a client that stands for several of them, by their hosts' names.
struct Group {
  std::set<std::string> joined;
  std::set<std::string> ended;
  std::set<std::string> lost;  ///< as the others say

  void hear(const control::Answer& answer);
  /// The client still waits for a machine that is lost, while all the others have ended.
  [[nodiscard]] bool waits_in_vain() const;
};

struct ClientEnd {
  enum class Kind {
    ended,        ///< by itself, with this status
    not_started,  ///< the job was never its: the others must not wait for it
    lost,         ///< in the middle; the others find out by themselves
  };
  Kind kind = Kind::ended;
  int exit_status = 0;
  std::string reason;  ///< "ssh: connect to host node2 port 22: Connection refused"

  bool operator==(const ClientEnd&) const = default;
};

/// `log_line`: the last that ssh itself had to say; empty: nothing. `executable`: that was to run.
/// ssh's own failures are status 255, which a program may have too: that one says so before.
ClientEnd judge_ssh(const ProcessEnd& end, const Heard& heard, const std::string& log_line,
                    const std::string& executable);

/// pdsh or srun, which stand for all machines and say themselves what fails.
ClientEnd judge_group(const ProcessEnd& end, const std::string& program);

/// One that was ended from here: what it ends with means nothing, but what was heard before does.
ClientEnd judge_cut(const ProcessEnd& end, const Heard& heard);

/// The job's status: that of the first client, they are in the order of ranks, that ended by
/// itself; `otherwise` where none did.
int job_status(std::span<const ClientEnd> ends, int otherwise);

}  // namespace acc::launcher
