// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::cluster {

/// Host names in order of first appearance, with the number of times that each appears.
struct HostCounts {
  std::vector<std::string> hosts;
  std::vector<int> counts;  ///< same length as `hosts`

  /// Adds `count` to a host; appends the host if it is new.
  void add(const std::string& host, int count);
};

/// Counts host names separated by whitespace: `h1 h1 h2`.
HostCounts count_hosts(const std::string& text);

/// Counts the host names in a file with one name per line. Empty if the file cannot be read or has
/// no names.
std::optional<HostCounts> count_hosts_in(const std::string& path);

}  // namespace acc::launcher::cluster
