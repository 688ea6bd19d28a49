// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace acc::rendezvous {

/// A problem and its remedy, for messages.
struct Advice {
  std::string what;        ///< the problem, as a sentence without its full stop
  std::string what_to_do;  ///< the remedy, in full sentences
};

// Messages about --main_process_ip `host`, shared by the launcher and `acclaunch doctor`.

/// Message for machine 0 if none of the `addresses` of `host` belongs to it.
Advice main_process_elsewhere(const std::string& host, const std::vector<std::string>& addresses);
/// Message for any machine that cannot resolve `host`; `failure` is the resolver's error.
Advice main_process_unknown(const std::string& host, const std::string& failure);

}  // namespace acc::rendezvous
