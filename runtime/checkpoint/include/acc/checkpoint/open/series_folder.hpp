// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// A series: a folder of checkpoints "checkpoint_<n>", as Accelerate names them automatically, with
/// a file `latest` that holds the name of the newest, as DeepSpeed writes it (no newline). Only one
/// process may use it at a time. A checkpoint is complete if it holds our manifest, or a model
/// under one of Accelerate's names. Throws Error(config) with the path.
namespace acc::checkpoint {

class SeriesFolder {
 public:
  explicit SeriesFolder(std::filesystem::path folder);

  /// Returns the checkpoint that `latest` names if it is complete, otherwise the complete one with
  /// the highest number. This also works if a predecessor was killed between saving and writing
  /// `latest`.
  [[nodiscard]] std::optional<std::filesystem::path> newest() const;
  /// Returns "checkpoint_<n>" for the next save; n is one more than the highest number in the
  /// folder.
  [[nodiscard]] std::filesystem::path next() const;
  /// Records that the checkpoint `path` was committed. Replaces `latest` with a file that names it.
  /// Then removes all complete checkpoints except the newest `total_limit` (none if it is absent),
  /// and what a predecessor left half removed. A checkpoint loses its name before it is deleted.
  /// Returns one line with the reason per folder that could not be removed; the next call tries
  /// again.
  [[nodiscard]] std::vector<std::string> committed(const std::filesystem::path& path,
                                                   std::optional<int> total_limit) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace acc::checkpoint
