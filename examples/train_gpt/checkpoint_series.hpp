#pragma once

#include <acc/runtime.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace train_gpt {

/// The step that a checkpoint was saved after, from its program state. Throws Error(config) where
/// it names none; `path` is for the message.
std::int64_t step_of(const acc::ProgramState& program, const std::string& path);

acc::ProgramState program_state(std::int64_t step);

/// The checkpoints of one run: folders "step_00000012" in one that all machines see, each complete
/// or absent. The newest two are kept: while one is being read, the next may be written.
class CheckpointSeries {
 public:
  CheckpointSeries(acc::Runtime& runtime, std::filesystem::path folder);

  /// Path of the newest one, the same on every rank; nothing where there is none. Collective.
  [[nodiscard]] std::optional<std::string> newest() const;
  /// Collective.
  void save(const acc::Model& model, const acc::Optimizer& optimizer, std::int64_t step) const;

 private:
  void remove_older() const;

  acc::Runtime& runtime_;
  std::filesystem::path folder_;
};

}  // namespace train_gpt
