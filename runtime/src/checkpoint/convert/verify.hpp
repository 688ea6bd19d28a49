#pragma once

#include "checkpoint/catalog/open.hpp"
#include "checkpoint/convert/progress.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

struct Damage {
  std::filesystem::path file;  ///< empty where it is known in `reason` alone
  std::string tensor;          ///< as stored; empty: of a file that holds none, or of all of it
  std::string reason;
};

struct Verification {
  std::size_t tensors = 0;
  std::uint64_t nbytes = 0;            ///< of their elements
  std::uint64_t unchecked_nbytes = 0;  ///< of those that nothing is stored to check them by
  std::size_t unchecked_tensors = 0;
  std::size_t files = 0;  ///< others, that were checked as a whole: values, schedulers, …
  std::vector<Damage> damaged;
};

/// Reads all of a checkpoint and checks it by all checksums that are there, on some threads. What
/// is wrong is in the result; only what is no checkpoint at all throws Error(config).
Verification verify(const std::filesystem::path& path, int num_threads,
                    const Progress& progress = {});
/// The same for the tensors of one that was opened.
void verify_tensors(const Stored& stored, int num_threads, const Progress& progress,
                    Verification& found);

/// A piece of a tensor, checked alone: so every damaged file is found, and threads share the work.
struct Part {
  const StoredTensor* tensor = nullptr;
  StoredPiece piece;

  /// Of its elements.
  [[nodiscard]] std::uint64_t nbytes() const {
    return static_cast<std::uint64_t>(piece.box.numel()) * size_of(tensor->dtype);
  }
};

}  // namespace acc::checkpoint::conversion
