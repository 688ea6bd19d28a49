// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace acc::swap {

/// A file of this process without a name, so that nothing of it is left when the process ends, also
/// if it is killed. Consists of extents that are allocated on the disk before they are used.
class SwapFile {
 public:
  /// folder: on the disk. setting: the key of the setting that names it, for messages. Throws
  /// Error(config) if no file can be made there.
  SwapFile(std::string folder, std::string setting);

  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  /// "/nvme (offload_optimizer_nvme_path)"
  [[nodiscard]] std::string describe() const { return folder_ + " (" + setting_ + ")"; }
  /// True if the file is read and written without the page cache.
  [[nodiscard]] bool direct() const noexcept { return direct_; }

  /// Allocates `nbytes`, a multiple of kPage, filled with zeros, and returns their offset. Throws
  /// Error(config) that says how many bytes are needed and free if the disk has less.
  std::uint64_t allocate(std::size_t nbytes);
  /// Gives an extent back to the disk.
  void free(std::uint64_t offset, std::size_t nbytes) noexcept;
  /// Bytes of all extents.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }

 private:
  void reserve(std::size_t nbytes);
  void choose_direct();

  std::string folder_;
  std::string setting_;
  UniqueFd file_;
  bool direct_ = false;
  std::uint64_t end_ = 0;
  std::uint64_t nbytes_ = 0;
};

}  // namespace acc::swap
