#pragma once

#include "acc/runtime.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace acc {

/// The checkpoints of one run, "FOLDER/checkpoint_<n>" (Accelerate's automatic naming), each
/// complete or absent, and FOLDER/latest, the name of the newest (DeepSpeed's). `newest` and `save`
/// are collective. Throws Error(config) that names the path.
class ACC_API CheckpointSeries {
 public:
  struct Options {
    /// How many are kept; absent: all. At least 1, and 2 where one may be read while the next is
    /// written.
    std::optional<int> total_limit = {};
  };
  /// `runtime` outlives the series; all machines see the folder.
  CheckpointSeries(Runtime& runtime, std::string folder, Options options);

  /// Path of the newest complete one, the same on every rank; nothing where there is none.
  [[nodiscard]] std::optional<std::string> newest() const;
  /// Saves the next one and removes those beyond the limit. Returns its path.
  std::string save(const Model& model, const Optimizer& optimizer, const SavedState& state) const;

 private:
  [[nodiscard]] std::string path_of(std::int64_t number) const;

  Runtime& runtime_;
  std::string folder_;
  Options options_;
};

}  // namespace acc
