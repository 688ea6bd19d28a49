#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace acc::collectives {

/// Ranks of one group that called different collectives under the same number.
struct CallDifference {
  /// "collective number 7 of shm[0,1,2] differs: rank 2 calls barrier, ranks 0-1 call all_gather of
  /// 8 x byte".
  std::string reason;
  /// A rank that called something else than most; empty where no call has most ranks.
  std::optional<int> at_fault;
};

/// The difference between calls that are described by at least two different texts. `ranks_by_call`:
/// global ranks, rising, for each call.
CallDifference call_difference(std::uint32_t sequence, const std::string& group,
                               const std::map<std::string, std::vector<int>>& ranks_by_call);

}  // namespace acc::collectives
