// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// A write-ahead log of entries in a folder (docs/rendezvous.md, "The log"). For one thread.
///
/// Entries are collected by `add` and reach the disk with `commit`, as one group with one checksum:
/// after a crash the log holds all entries of a group or none. A group that a crash has cut off can
/// only be the last one; it is removed when the log is opened. `rewrite` replaces the log by one
/// with other entries, so that its size is bounded.
///
/// All errors name the file. Errc::process: the disk (full, failing); nothing more is written then.
/// Errc::config: another program uses the folder, or the file is damaged, of a newer version, or
/// not accessible.
class Journal {
 public:
  struct Entry {
    std::uint8_t kind = 0;  ///< chosen by the user
    std::string_view first{};
    std::string_view second{};
  };
  using Receive = std::function<void(const Entry&)>;

  /// Opens the log in `folder`, creates both if they are missing, and passes all entries to
  /// `replay`. `syncs`: `commit` returns when the entries are on the disk; else when the kernel has
  /// them, so that they survive the process but not the machine.
  Journal(std::filesystem::path folder, bool syncs, const Receive& replay);

  void add(const Entry& entry);
  void commit();
  /// True if entries have been added since the last commit.
  [[nodiscard]] bool has_pending() const noexcept { return !pending_.empty(); }
  /// True if the log should be rewritten: it is much longer than after the last rewrite.
  [[nodiscard]] bool is_long() const noexcept;
  /// Replaces the whole log by the entries that `state` passes on. The entries added since the last
  /// commit are dropped: they must be part of the state. A crash leaves the old log or the new one.
  void rewrite(const std::function<void(const Receive& add)>& state);

 private:
  /// A log file and the end of its last group.
  struct File {
    std::filesystem::path path;
    UniqueFd fd{};
    std::uint64_t salt = 0;
    std::uint64_t end = 0;
    std::uint64_t allocated = 0;
  };

  void lock();
  void read(const Receive& replay);
  void write_group(File& file);
  void allocate(File& file, std::uint64_t size);
  void write_at(const File& file, std::string_view bytes, std::uint64_t at);
  void sync(const File& file);
  [[noreturn]] void fail(std::string_view action, const std::filesystem::path& path, int error);

  std::filesystem::path folder_;
  UniqueFd lock_;
  File file_;
  std::uint64_t rewritten_bytes_ = 0;  // size of the log after the last rewrite
  std::string pending_;                // space for a group's header, then its entries; or empty
  bool syncs_;
  bool is_broken_ = false;  // writing has failed
};

}  // namespace acc::rendezvous
