#pragma once

#include "doctor/findings.hpp"
#include "doctor/probe.hpp"

#include <string>
#include <vector>

namespace acc::doctor {

/// The place where the job was to meet, as one machine sees it, when it did not.
struct MeetingPlace {
  std::string host;
  std::uint16_t port = 0;
  bool serves = false;            ///< this machine is machine 0, which listens there
  Resolved name;                  ///< what `host` leads to, here
  std::vector<Attempt> attempts;  ///< one for each address
};

MeetingPlace look_at(const std::string& host, std::uint16_t port, bool serves);

std::vector<Finding> meeting_findings(const MeetingPlace& place, const MachineFacts& own);

}  // namespace acc::doctor
