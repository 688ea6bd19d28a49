#pragma once

#include "plan/given.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// The hosts of a Slurm hostlist, as `scontrol show hostnames` prints them:
/// `rack[0-1]n[08-10],head`. Order and doubles are kept. Grammar: Slurm 22.05,
/// src/common/hostlist.c. Throws Error(config) that says where the list ends being one; a list of
/// more than a million hosts is none.
std::vector<std::string> expand_hosts(const Given& list);

/// Slurm's run-length lists: `2(x3),1` is 2,2,2,1. Throws Error(config).
std::vector<int> expand_counts(const Given& list);

}  // namespace acc::launcher
