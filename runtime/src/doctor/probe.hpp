#pragma once

#include "doctor/facts.hpp"

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace acc::doctor {

struct Resolved {
  std::vector<std::string> addresses;  ///< sorted
  std::string failure;                 ///< why there are none
};

/// Looks all names up at once, each on a thread of its own, which is left behind at the limit: a
/// name server may not answer for minutes.
std::map<std::string, Resolved> resolve(const std::vector<std::string>& names,
                                        std::chrono::milliseconds limit);

/// Where another machine may answer.
struct Target {
  std::string address;
  std::uint16_t port = 0;
  std::uint64_t token = 0;  ///< that the right one's answer carries; 0: to be accepted is enough
};

/// Connects to all at once and waits for their answers, at most `limit`. In the order of `targets`.
std::vector<Attempt> connect_to(const std::vector<Target>& targets,
                                std::chrono::milliseconds limit);

struct ClockReading {
  double offset_ms = 0;  ///< of the other's clock against this one
  double round_trip_us = 0;
};

/// The quickest of 20 exchanges, as NTP takes it; nothing where there was none within the limit.
std::optional<ClockReading> compare_clocks(const Target& target, std::chrono::milliseconds limit);

}  // namespace acc::doctor
