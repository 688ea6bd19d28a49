// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "journal/journal.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// The groups in a file of a folder, with a checksum each. A group that a crash has cut off can
/// only be the last one; `read` removes it.
class JournalFile final : public JournalStorage {
 public:
  /// Takes the folder for this process; creates it if it is missing. `syncs`: `append` returns when
  /// the group is on the disk; else when the kernel has it, so that it survives the process but not
  /// the machine.
  JournalFile(std::filesystem::path folder, bool syncs);

  void read(const Receive& receive) override;
  void append(std::string_view group) override;
  void replace(std::span<const std::string> groups) override;
  [[nodiscard]] bool waits() const noexcept override { return syncs_; }

 private:
  /// A log file and the end of its last group.
  struct File {
    std::filesystem::path path;
    UniqueFd fd{};
    std::uint64_t salt = 0;
    std::uint64_t end = 0;
    std::uint64_t allocated = 0;
  };

  [[nodiscard]] std::filesystem::path new_path() const;
  void read_file(const Receive& receive);
  void write_new(File& next, std::span<const std::string> groups);
  void write_group(File& file, std::string_view group);
  void allocate(File& file, std::uint64_t size);
  void write_at(const File& file, std::string_view bytes, std::uint64_t at);
  void sync(const File& file);

  std::filesystem::path folder_;
  UniqueFd lock_;
  File file_;
  std::string buffer_;  // of write_group
  bool syncs_;
};

}  // namespace acc::rendezvous
