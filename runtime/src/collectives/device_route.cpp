// SPDX-License-Identifier: Apache-2.0
#include "collectives/device_route.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

// The route is decided once for the whole job and not per group: one rank without a usable NCCL
// moves all ranks to staging. Every rank evaluates the same function on the same published facts,
// so no further message is needed.
namespace acc::collectives {
namespace {

using Ranks = std::vector<RankHardware>;

std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ","));
}

template <typename Condition>
std::vector<int> ranks_where(const Ranks& ranks, const Condition& holds) {
  std::vector<int> found;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (holds(ranks[r])) {
      found.push_back(static_cast<int>(r));
    }
  }
  return found;
}

// The checks below return the reason why NCCL cannot be used, or nothing.

std::optional<std::string> missing_nccl(const Ranks& ranks) {
  const auto without = ranks_where(ranks, [](const auto& r) { return r.nccl_version == 0; });
  if (!without.empty()) {
    return fmt::format("{} found no NCCL ({})", name_ranks(without),
                       ranks[static_cast<std::size_t>(without[0])].nccl_problem);
  }
  const auto old =
      ranks_where(ranks, [](const auto& r) { return r.nccl_version < kMinNcclVersion; });
  if (!old.empty()) {
    return fmt::format("NCCL of {} is {}, at least {} is needed", name_ranks(old),
                       nccl_version_text(ranks[static_cast<std::size_t>(old[0])].nccl_version),
                       nccl_version_text(kMinNcclVersion));
  }
  return std::nullopt;
}

/// NCCL connects only ranks of the same version (init.cc: "Mismatched NCCL version detected").
std::optional<std::string> mixed_versions(const Ranks& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].nccl_version != ranks[0].nccl_version) {
      return fmt::format("rank 0 has NCCL {}, rank {} has {}",
                         nccl_version_text(ranks[0].nccl_version), r,
                         nccl_version_text(ranks[r].nccl_version));
    }
  }
  return std::nullopt;
}

/// NCCL refuses two ranks on one GPU ("Duplicate GPU detected") unless its version supports that
/// and the environment of every rank enables it.
std::optional<std::string> shared_gpu(const Ranks& ranks) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> by_gpu;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    by_gpu[{ranks[r].host, ranks[r].hardware_id}].push_back(static_cast<int>(r));
  }
  const auto shared =
      std::find_if(by_gpu.begin(), by_gpu.end(), [](const auto& g) { return g.second.size() > 1; });
  if (shared == by_gpu.end()) {
    return std::nullopt;
  }
  const std::string who =
      fmt::format("{} share {}", name_ranks(shared->second), shared->first.second);
  const auto old =
      ranks_where(ranks, [](const auto& r) { return r.nccl_version < kMultiRankNcclVersion; });
  if (!old.empty()) {
    return fmt::format("{}, which NCCL permits from {} on ({} on {})", who,
                       nccl_version_text(kMultiRankNcclVersion),
                       nccl_version_text(ranks[static_cast<std::size_t>(old[0])].nccl_version),
                       name_ranks(old));
  }
  const auto unset = ranks_where(ranks, [](const auto& r) { return !r.shares_by_nccl; });
  if (!unset.empty()) {
    return fmt::format("{}, and NCCL_MULTI_RANK_GPU_ENABLE=1 is not set on {}", who,
                       name_ranks(unset));
  }
  return std::nullopt;
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string encode(const RankHardware& hardware) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", hardware.host, hardware.hardware_id,
                     hardware.nccl_version, hardware.shares_by_nccl ? 1 : 0, hardware.nccl_problem);
}

RankHardware decode_hardware(const std::string& text) {
  std::istringstream lines(text);
  RankHardware hardware;
  std::string version;
  std::string shares;
  std::getline(lines, hardware.host);
  std::getline(lines, hardware.hardware_id);
  std::getline(lines, version);
  std::getline(lines, shares);
  const bool whole = lines.good();  // false if one of the first four lines is missing
  std::getline(lines, hardware.nccl_problem, '\0');
  const char* const end = version.data() + version.size();
  const auto parsed = std::from_chars(version.data(), end, hardware.nccl_version);
  if (!whole || parsed.ec != std::errc() || parsed.ptr != end || hardware.nccl_version < 0 ||
      (shares != "0" && shares != "1")) {
    throw Error(
        Errc::protocol,
        fmt::format("a rank's hardware description in the store ({} bytes) is malformed: expected "
                    "host, GPU, NCCL version and 0 or 1, one per line",
                    text.size()));
  }
  hardware.shares_by_nccl = shares == "1";
  return hardware;
}

DeviceRoute choose_route(settings::DeviceCollectives wanted, const Ranks& ranks) {
  if (wanted == settings::DeviceCollectives::staged) {
    return {.nccl = false, .reason = "ACC_COLLECTIVES=staged"};
  }
  std::optional<std::string> problem = missing_nccl(ranks);
  problem = problem ? problem : mixed_versions(ranks);
  problem = problem ? problem : shared_gpu(ranks);
  if (!problem) {
    return {.nccl = true, .reason = "NCCL " + nccl_version_text(ranks[0].nccl_version)};
  }
  if (wanted == settings::DeviceCollectives::nccl) {
    throw Error(Errc::device,
                fmt::format("ACC_COLLECTIVES=nccl is not possible: {} (use ACC_COLLECTIVES=staged, "
                            "which needs no NCCL)",
                            *problem));
  }
  return {.nccl = false, .reason = *problem};
}

}  // namespace acc::collectives
