// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace train_gpt {

/// A file that is mapped read-only, so that all ranks of a machine share its pages. Move-only.
class MappedFile {
 public:
  /// Throws Error(config) with the path.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::uint8_t> bytes_;
};

/// Throws Error(config) for a token id without an embedding. where: its place in the file.
[[noreturn]] void fail_outside_vocabulary(const std::string& path, const std::string& where,
                                          std::int64_t id, std::int64_t vocab);

}  // namespace train_gpt
