#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A worker as the prefix of its lines may name it.
struct LineSource {
  std::string role_name;
  int rank = 0;
  int local_rank = 0;
  std::string host;
};

/// What stands before each line of a worker: `pattern`, in which role_name, rank, local_rank and
/// host are replaced where they stand as $name or ${name}, and $$ is $; every other byte stays, as
/// with torchrun. Without a pattern "[RANK] " on one machine, and "[HOST RANK] " on several.
std::string line_prefix(std::string_view pattern, const LineSource& source, int num_machines);

/// What stands before a line that all of `ranks`, ascending, have written: "[0-3,5] ".
std::string prefix_of_ranks(const std::vector<int>& ranks);

}  // namespace acc::launcher
