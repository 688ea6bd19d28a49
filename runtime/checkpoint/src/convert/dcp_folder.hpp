// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/dcp/folder.hpp"

#include <filesystem>
#include <vector>

namespace acc::checkpoint::conversion {

/// A DCP folder to be written, cut in rows as FSDP cuts, and the sources of its tensors.
struct DcpFolder {
  dcp::FolderPlan plan;
  /// One per planned tensor; null stands for an fp32 scalar with the value `step`.
  std::vector<const StoredTensor*> sources;
  float step = 0.0F;

  [[nodiscard]] std::uint64_t nbytes() const;
  /// Sets the world size and the cut rule. Called after the last tensor was added.
  void cut(int num_processes);
};

/// Fills an existing folder: the ranks' files in parallel, then `.metadata`.
void write_dcp_folder(const std::filesystem::path& folder, const DcpFolder& from,
                      TensorReader& reader, int num_threads, ProgressMeter& meter);

/// True if a path may be part of such a folder.
bool is_dcp_file(const std::string& path);

}  // namespace acc::checkpoint::conversion
