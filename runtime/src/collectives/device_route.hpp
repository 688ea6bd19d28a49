// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <string>
#include <vector>

namespace acc::collectives {

/// Facts about one rank's GPU and NCCL that each rank publishes in the store, so that all ranks
/// make the same decision from the same data.
struct RankHardware {
  std::string host;             ///< boot id of the machine; equal for all containers on it
  std::string hardware_id;      ///< `Device::hardware_id`
  int nccl_version = 0;         ///< 10000 * major + 100 * minor + patch; 0 if NCCL was not found
  bool shares_by_nccl = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE=1 is set
  std::string nccl_problem;     ///< why NCCL was not found; may be empty otherwise

  bool operator==(const RankHardware&) const = default;
};

/// Text of the store value: the five fields in the order above, one per line.
std::string encode(const RankHardware& hardware);
/// Parses that text. Throws Error(protocol) if it is not one that `encode` makes.
RankHardware decode_hardware(const std::string& text);

/// The path by which GPU memory moves between the ranks of the job.
struct DeviceRoute {
  bool nccl = false;   ///< false: staged through host memory
  std::string reason;  ///< why, as half a sentence for the log
};

inline constexpr int kMinNcclVersion = 21800;        ///< has ncclCommSplit and non-blocking init
inline constexpr int kMultiRankNcclVersion = 23000;  ///< supports several ranks per GPU

/// Text of a version: "2.28.9" for 22809.
std::string nccl_version_text(int version);

/// Chooses between NCCL and staging for the whole job. A pure function: all ranks call it with the
/// same `ranks` (all ranks of the job, in rank order) and get the same result. `wanted` is
/// ACC_COLLECTIVES; with `automatic`, anything that prevents NCCL selects staging. Throws
/// Error(device) if `wanted` is `nccl` and NCCL cannot be used.
DeviceRoute choose_route(settings::DeviceCollectives wanted,
                         const std::vector<RankHardware>& ranks);

}  // namespace acc::collectives
