#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace train_gpt {

/// A file mapped read-only, so that the ranks of a host share its pages. Move-only.
class MappedFile {
 public:
  /// Throws Error(config) naming the path.
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

/// An id that the model has no embedding for. `where` describes its place in the file.
[[noreturn]] void fail_outside_vocabulary(const std::string& path, const std::string& where,
                                          std::int64_t id, std::int64_t vocab);

}  // namespace train_gpt
