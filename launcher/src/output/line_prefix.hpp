// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::output {

/// Values of one worker that a prefix can contain.
struct LineSource {
  std::string role_name;
  int rank = 0;
  int local_rank = 0;
  std::string host;
};

/// Returns the prefix of a worker's lines. In `pattern`, the names role_name, rank, local_rank and
/// host are replaced if written as $name or ${name}, and $$ becomes $. Other text stays unchanged,
/// as with torchrun's log line template. If `pattern` is empty, the prefix is "[RANK] " in a job of
/// one machine, and "[HOST RANK] " in a job of several.
std::string line_prefix(std::string_view pattern, const LineSource& source, int num_machines);

/// Returns the prefix of a line that several ranks have written: "[0-3,5] ". `ranks`: ascending.
std::string prefix_of_ranks(const std::vector<int>& ranks);

}  // namespace acc::launcher::output
