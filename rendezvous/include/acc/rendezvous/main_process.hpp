#pragma once

#include <string>
#include <vector>

namespace acc::rendezvous {

/// What is wrong, as a sentence without its full stop, and what to do about it, in full sentences.
struct Advice {
  std::string what;
  std::string what_to_do;
};

// For machine 0, about its --main_process_ip `host`; the launcher and doctor say the same.

/// None of its `addresses` is this machine's.
Advice main_process_elsewhere(const std::string& host, const std::vector<std::string>& addresses);
/// It has no address, for the reason `failure`. For any machine.
Advice main_process_unknown(const std::string& host, const std::string& failure);

}  // namespace acc::rendezvous
