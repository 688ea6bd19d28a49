// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace acc::collectives {

/// Describes ranks of one group that called different collectives under the same sequence number.
struct CallDifference {
  /// "collective number 7 of shm[0,1,2] differs: rank 2 calls barrier, ranks 0-1 call all_gather of
  /// 8 x byte".
  std::string reason;
  /// A global rank of the smallest group of callers. Empty if the largest number of ranks is shared
  /// by two or more calls, because then it is unknown which call is the wrong one.
  std::optional<int> at_fault;
};

/// Compares the calls that ranks made under number `sequence` of the group described by `group`.
/// `ranks_by_call` maps the text of each call (at least two) to its global ranks in ascending
/// order.
CallDifference call_difference(std::uint32_t sequence, const std::string& group,
                               const std::map<std::string, std::vector<int>>& ranks_by_call);

}  // namespace acc::collectives
