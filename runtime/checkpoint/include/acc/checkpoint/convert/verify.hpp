// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/checkpoint/open/open.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

struct Damage {
  std::filesystem::path file;  ///< empty if only `reason` names it
  std::string tensor;          ///< stored name; empty for a whole file or a file without tensors
  std::string reason;
};

struct Verification {
  std::size_t tensors = 0;
  std::uint64_t nbytes = 0;            ///< size of their elements
  std::uint64_t unchecked_nbytes = 0;  ///< of tensors without checksums
  std::size_t unchecked_tensors = 0;
  std::size_t files = 0;  ///< files checked as a whole: values, schedulers, …
  std::vector<Damage> damaged;
  /// Files that this library cannot read; only the checksums of their archives were checked.
  std::vector<Damage> unreadable;
  std::vector<std::string> names_unknown;  ///< TrainingState::names_unknown of each optimizer
};

/// Reads all of a checkpoint on several threads and checks it against all checksums that exist.
/// Damage, and what cannot be read here, is returned in the result. Throws Error(config) only if
/// the path is not a checkpoint.
Verification verify(const std::filesystem::path& path, int num_threads,
                    ShowProgress progress = ShowProgress::no);
/// The same for the tensors of an opened checkpoint.
void verify_tensors(const Stored& stored, int num_threads, ShowProgress progress,
                    Verification& found);

/// A piece of a tensor, which is checked on its own, so that every damaged file is found and
/// threads share the work.
struct Part {
  const StoredTensor* tensor = nullptr;
  StoredPiece piece;

  /// Size of its elements.
  [[nodiscard]] std::uint64_t nbytes() const {
    return static_cast<std::uint64_t>(piece.box.numel()) * size_of(tensor->dtype);
  }
};

}  // namespace acc::checkpoint::conversion
