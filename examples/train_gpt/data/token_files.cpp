// SPDX-License-Identifier: Apache-2.0
#include "data/token_files.hpp"

#include "data/random.hpp"

#include <acc/base/error.hpp>

#include <algorithm>
#include <filesystem>

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

/// Returns the path itself, or the regular files below a folder in the order of their paths.
std::vector<std::string> files_of(const std::string& path) {
  if (!fs::is_directory(path)) {
    return {path};
  }
  std::vector<std::string> files;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied)) {
    if (entry.is_regular_file()) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());  // file systems list entries in different orders
  return files;
}

}  // namespace

TokenFiles::TokenFiles(const std::vector<std::string>& paths, TokenType type, std::int64_t vocab,
                       std::int64_t seq_len, std::uint64_t seed, DataParallel parallel)
    : type_(type), seed_(seed), parallel_(parallel) {
  for (const std::string& path : paths) {
    for (const std::string& file : files_of(path)) {
      add_file(file);
    }
  }
  if (count_ < seq_len + 1) {
    throw acc::Error(
        acc::Errc::config,
        paths.front() + (paths.size() > 1 ? " and the other paths contain " : " contains ") +
            std::to_string(count_) +
            " tokens, one sequence needs seq_len + 1 = " + std::to_string(seq_len + 1));
  }
  check_vocabulary(vocab);
}

void TokenFiles::add_file(const std::string& path) {
  MappedFile file(path);
  const std::int64_t width = type_ == TokenType::byte ? 1 : 2;
  const auto size = static_cast<std::int64_t>(file.bytes().size());
  if (size % width != 0) {
    throw acc::Error(acc::Errc::config, path + ": " + std::to_string(size) +
                                            " bytes are not a multiple of 2, the size of a uint16 "
                                            "token id");
  }
  segments_.push_back({std::move(file), count_, size / width});
  count_ += size / width;
}

// Each rank checks its share, so that large data are read once by all ranks together.
void TokenFiles::check_vocabulary(std::int64_t vocab) const {
  if (type_ == TokenType::byte && vocab >= 256) {
    return;
  }
  for (const Segment& segment : segments_) {
    const std::int64_t begin = segment.count * parallel_.rank / parallel_.world_size;
    const std::int64_t end = segment.count * (parallel_.rank + 1) / parallel_.world_size;
    for (std::int64_t i = begin; i < end; ++i) {
      if (id(segment, i) >= vocab) {
        fail_outside_vocabulary(segment.file.path(), "position " + std::to_string(i),
                                id(segment, i), vocab);
      }
    }
  }
}

std::int32_t TokenFiles::id(const Segment& segment, std::int64_t index) const {
  const std::uint8_t* bytes = segment.file.bytes().data();
  if (type_ == TokenType::byte) {
    return bytes[index];
  }
  return bytes[2 * index] + 256 * bytes[2 * index + 1];
}

// Finds the segment that contains the index. Segments are sorted by their first index.
std::int32_t TokenFiles::id(std::int64_t index) const {
  const auto after = std::upper_bound(
      segments_.begin(), segments_.end(), index,
      [](std::int64_t value, const Segment& segment) { return value < segment.first; });
  const Segment& segment = *std::prev(after);
  return id(segment, index - segment.first);
}

std::int64_t TokenFiles::start(const BatchPosition& position, std::int64_t sequence,
                               std::int64_t seq_len) const {
  if (!position.windows.empty()) {
    return position.windows[static_cast<std::size_t>(sequence)].index * seq_len;
  }
  // Depends only on seed, step and the sequence's index, not on the number of ranks.
  const std::uint64_t draw =
      random_bits({seed_, static_cast<std::uint64_t>(position.step),
                   static_cast<std::uint64_t>(position.sequence + sequence)});
  return static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(count_ - seq_len));
}

void TokenFiles::read(const BatchPosition& position, Batch& batch) const {
  const std::int64_t T = batch.shape.time;
  for (std::int64_t b = 0; b < batch.shape.batch; ++b) {
    const std::int64_t first = start(position, b, T);
    for (std::int64_t t = 0; t < T; ++t) {
      const auto n = static_cast<std::size_t>(b * T + t);
      batch.inputs[n] = id(first + t);
      batch.targets[n] = id(first + t + 1);
    }
  }
}

}  // namespace train_gpt
