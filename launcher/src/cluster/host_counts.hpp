#pragma once

#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// Hosts in the order in which they are first named, and how often each is.
struct HostCounts {
  std::vector<std::string> hosts;
  std::vector<int> counts;

  void add(const std::string& host, int count);
};

/// A host a word: `h1 h1 h2`.
HostCounts count_hosts(const std::string& text);

/// Of a file with a host a line; nothing where it cannot be read or names none.
std::optional<HostCounts> count_hosts_in(const std::string& path);

}  // namespace acc::launcher
