// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/job.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

/// Changes of a job that its servers report to a Board (board.hpp).
namespace acc::rendezvous::news {

/// The job exists.
struct Created {
  std::string run_id;
  int min_machines = 1;
  int num_machines = 1;
  int max_restarts = 0;
};
/// A machine asks for a place. `agent`: number of its connection.
struct Joined {
  std::uint64_t agent = 0;
  Machine machine;
};
/// A machine has a new connection.
struct Reconnected {
  std::uint64_t before = 0;
  std::uint64_t agent = 0;
};
/// A machine is lost, has left or was refused. A machine that leaves after the end of the job is
/// not reported.
struct Gone {
  enum class Why { left, lost, refused };
  std::uint64_t agent = 0;
  Why why = Why::lost;
  std::string reason;
};
/// A machine was refused before it had a place.
struct Refused {
  Machine machine;
  std::string reason;
};
/// What machines wait for has changed; empty: they do not wait.
struct Waits {
  std::string text;
};
/// A round is formed. `agents` are in order of machine rank.
struct Formed {
  Round round;
  std::vector<std::uint64_t> agents;
};
/// The workers of a machine have ended.
struct Reported {
  std::uint64_t agent = 0;
};
/// The attempt has ended. Comes a second time if the reason or the restart changes.
struct Ended {
  AttemptEnd end;
};
/// Every machine of the round has reported or is lost, and another round follows.
struct Settled {};
/// The job is over. `end` is empty if every worker succeeded.
struct Over {
  std::optional<AttemptEnd> end;
};

using News = std::variant<Created, Joined, Reconnected, Gone, Refused, Waits, Formed, Reported,
                          Ended, Settled, Over>;

}  // namespace acc::rendezvous::news
