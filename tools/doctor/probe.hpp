// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/facts.hpp"

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace acc::doctor {

/// Result of a name lookup.
struct Resolved {
  std::vector<std::string> addresses;  ///< sorted
  std::string failure;                 ///< why there are no addresses
};

/// Looks up all names at the same time, each on its own thread. Threads that have no result at
/// the limit are abandoned, because getaddrinfo cannot be interrupted and a name server may not
/// answer for minutes.
std::map<std::string, Resolved> resolve(const std::vector<std::string>& names,
                                        std::chrono::milliseconds limit);

/// Address at which another machine may answer.
struct Target {
  std::string address;
  std::uint16_t port = 0;
  std::uint64_t token = 0;  ///< expected in the answer; 0: an accepted connection is enough
};

/// Connects to the targets at the same time, 256 at once, and waits for their answers, at most
/// `limit` for each batch. Returns the results in the order of `targets`.
std::vector<Attempt> connect_to(const std::vector<Target>& targets,
                                std::chrono::milliseconds limit);

/// Result of a clock comparison.
struct ClockReading {
  double offset_ms = 0;      ///< the other machine's clock minus this one's
  double round_trip_us = 0;  ///< of the exchange; half of it bounds the error of the offset
};

/// Compares the clocks by 20 exchanges and returns the one with the shortest round trip, as NTP
/// does. Empty if no exchange was complete within the limit.
std::optional<ClockReading> compare_clocks(const Target& target, std::chrono::milliseconds limit);

}  // namespace acc::doctor
