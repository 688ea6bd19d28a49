// SPDX-License-Identifier: Apache-2.0
#include "collectives/call_difference.hpp"

#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace acc::collectives {

CallDifference call_difference(std::uint32_t sequence, const std::string& group,
                               const std::map<std::string, std::vector<int>>& ranks_by_call) {
  std::vector<std::pair<std::vector<int>, std::string>> calls;
  for (const auto& [call, ranks] : ranks_by_call) {
    calls.emplace_back(ranks, call);
  }
  std::ranges::sort(calls, [](const auto& a, const auto& b) {  // calls with fewest ranks first
    return std::pair(a.first.size(), b.first.front()) < std::pair(b.first.size(), a.first.front());
  });
  CallDifference difference{fmt::format("collective number {} of {} differs:", sequence, group),
                            std::nullopt};
  const char* separator = " ";
  for (const auto& [ranks, call] : calls) {
    difference.reason += fmt::format("{}rank{} {} call{} {}", std::exchange(separator, ", "),
                                     ranks.size() == 1 ? "" : "s", number_list(ranks),
                                     ranks.size() == 1 ? "s" : "", call);
  }
  // Blames a rank only if one call has strictly more ranks than every other call.
  if (calls.size() > 1 && calls[calls.size() - 2].first.size() < calls.back().first.size()) {
    difference.at_fault = calls.front().first.front();
  }
  return difference;
}

}  // namespace acc::collectives
