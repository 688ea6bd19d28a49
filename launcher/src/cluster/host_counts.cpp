// SPDX-License-Identifier: Apache-2.0
#include "cluster/host_counts.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace acc::launcher::cluster {

void HostCounts::add(const std::string& host, int count) {
  const auto found = std::ranges::find(hosts, host);
  if (found == hosts.end()) {
    hosts.push_back(host);
    counts.push_back(count);
  } else {
    counts[static_cast<std::size_t>(found - hosts.begin())] += count;
  }
}

HostCounts count_hosts(const std::string& text) {
  HostCounts found;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    found.add(word, 1);
  }
  return found;
}

std::optional<HostCounts> count_hosts_in(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  HostCounts found = file ? count_hosts(text.str()) : HostCounts{};
  return found.hosts.empty() ? std::nullopt : std::optional(std::move(found));
}

}  // namespace acc::launcher::cluster
