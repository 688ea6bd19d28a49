// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/data_source.hpp"
#include "data/mapped_file.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace train_gpt {

/// Width of one token in the files.
enum class TokenType { byte, uint16 };

/// Files that are read as one long sequence of tokens. A batch consists of windows that start at
/// random positions, or of those that the position names.
class TokenFiles final : public DataSource {
 public:
  /// paths: files, or folders, whose regular files are read recursively in the order of their
  /// paths. Throws Error(config) if there are fewer than seq_len + 1 tokens.
  TokenFiles(const std::vector<std::string>& paths, TokenType type, std::int64_t vocab,
             std::int64_t seq_len, std::uint64_t seed, DataParallel parallel);

  void read(const BatchPosition& position, Batch& batch) const override;
  [[nodiscard]] std::int64_t tokens() const override { return count_; }

 private:
  struct Segment {
    MappedFile file;
    std::int64_t first;  // index of its first token in the whole sequence
    std::int64_t count;
  };
  void add_file(const std::string& path);
  /// Index of the first token of a sequence of a batch.
  [[nodiscard]] std::int64_t start(const BatchPosition& position, std::int64_t sequence,
                                   std::int64_t seq_len) const;
  void check_vocabulary(std::int64_t vocab) const;
  [[nodiscard]] std::int32_t id(std::int64_t index) const;
  [[nodiscard]] std::int32_t id(const Segment& segment, std::int64_t index) const;

  TokenType type_;
  std::uint64_t seed_;
  DataParallel parallel_;
  std::vector<Segment> segments_;
  std::int64_t count_ = 0;
};

}  // namespace train_gpt
