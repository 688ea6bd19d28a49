#pragma once

#include "checkpoint/catalog/tensor_reader.hpp"
#include "checkpoint/convert/progress.hpp"
#include "checkpoint/dcp/folder.hpp"

#include <filesystem>
#include <vector>

namespace acc::checkpoint::conversion {

/// A DCP folder in rows, as FSDP cuts them, and where its tensors come from.
struct DcpFolder {
  dcp::FolderPlan plan;
  /// One a planned tensor; null: an fp32 scalar, `step`.
  std::vector<const StoredTensor*> sources;
  float step = 0.0F;

  [[nodiscard]] std::uint64_t nbytes() const;
  /// After the last tensor.
  void cut(int num_processes);
};

/// Fills an existing folder: each rank's file, several at once, then `.metadata`.
void write_dcp_folder(const std::filesystem::path& folder, const DcpFolder& from,
                      TensorReader& reader, int num_threads, ProgressMeter& meter);

/// Whether a path may lie in such a folder.
bool is_dcp_file(const std::string& path);

}  // namespace acc::checkpoint::conversion
