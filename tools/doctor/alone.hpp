// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/findings.hpp"
#include "doctor/probe.hpp"

#include <string>
#include <vector>

namespace acc::doctor {

/// The address of the main process as one machine sees it, after the machines did not meet.
struct MeetingPlace {
  std::string host;
  std::uint16_t port = 0;
  bool serves = false;            ///< this machine is machine 0, which listens there
  Resolved name;                  ///< addresses of `host`, as resolved on this machine
  std::vector<Attempt> attempts;  ///< one connection per address; none on machine 0
};

/// Resolves `host` and connects to all of its addresses, unless this machine `serves`. At most 10
/// s.
MeetingPlace look_at(const std::string& host, std::uint16_t port, bool serves);

/// Problems with the main process's address. `own`: facts of this machine.
std::vector<Finding> meeting_findings(const MeetingPlace& place, const MachineFacts& own);

}  // namespace acc::doctor
