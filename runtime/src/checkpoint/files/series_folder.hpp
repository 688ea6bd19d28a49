#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// A folder of checkpoints "checkpoint_<n>", as Accelerate names them automatically, with a file
/// `latest` that holds the name of the newest, as DeepSpeed writes it (no newline). One process at
/// a time. A checkpoint is complete that holds our manifest, or a model by one of Accelerate's
/// names. Throws Error(config) that names the path.
namespace acc::checkpoint {

class SeriesFolder {
 public:
  explicit SeriesFolder(std::filesystem::path folder);

  /// What `latest` names, if that is complete, else the complete one with the highest number: true
  /// also where a predecessor was killed between saving and writing `latest`.
  [[nodiscard]] std::optional<std::filesystem::path> newest() const;
  /// "checkpoint_<n>" for the next save: one more than the highest number that is there.
  [[nodiscard]] std::filesystem::path next() const;
  /// After `path` was committed: `latest` is exchanged for one that names it, then all but the
  /// newest `total_limit` complete ones are removed (nothing where it is absent), and what a
  /// predecessor left half removed. What is being removed is no checkpoint from the first moment
  /// on. Returns one line per folder that could not be removed, with the reason; the next call
  /// tries again.
  [[nodiscard]] std::vector<std::string> committed(const std::filesystem::path& path,
                                                   std::optional<int> total_limit) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace acc::checkpoint
