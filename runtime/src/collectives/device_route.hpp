#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <string>
#include <vector>

namespace acc::collectives {

/// What a rank says of its GPU, so that all ranks come to the same decision.
struct RankHardware {
  std::string host;             ///< names the machine, and its boot
  std::string hardware_id;      ///< `Device::hardware_id`
  int nccl_version = 0;         ///< 10000 * major + 100 * minor + patch; 0: none
  bool shares_by_nccl = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE=1
  std::string nccl_problem;     ///< what was tried, where there is none

  bool operator==(const RankHardware&) const = default;
};

std::string encode(const RankHardware& hardware);
RankHardware decode_hardware(const std::string& text);

/// Who moves the memory of GPUs between the ranks of the job, and why, as half a sentence.
struct DeviceRoute {
  bool nccl = false;
  std::string reason;
};

inline constexpr int kMinNcclVersion = 21800;        ///< ncclCommSplit, non-blocking init
inline constexpr int kMultiRankNcclVersion = 23000;  ///< several ranks on one GPU

/// "2.28.9"
std::string nccl_version_text(int version);

/// `ranks`: of the whole job, in order. Throws Error(device) when NCCL is wanted and cannot be.
DeviceRoute choose_route(plugins::DeviceCollectives wanted, const std::vector<RankHardware>& ranks);

}  // namespace acc::collectives
