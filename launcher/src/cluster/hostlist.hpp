// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::cluster {
/// Returns the hosts of a Slurm hostlist, `rack[0-1]n[08-10],head`, in the order in which `scontrol
/// show hostnames` prints them; repeated hosts are kept. Grammar: Slurm 22.05,
/// src/common/hostlist.c. Throws Error(config) with the position of a syntax error, and for more
/// than a million hosts.
std::vector<std::string> expand_hosts(const Sourced<std::string>& list);

/// Returns the numbers of Slurm's run-length notation: `2(x3),1` is 2,2,2,1. Throws Error(config).
std::vector<int> expand_counts(const Sourced<std::string>& list);

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
