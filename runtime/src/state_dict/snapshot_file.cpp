// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot_file.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

namespace acc::state_dict {
namespace {

/// Distance of two places. The file is sparse: only what was written takes memory.
constexpr std::uint64_t kPlace = std::uint64_t{1} << 42;
constexpr std::uint64_t kHeadBytes = 4096;
constexpr std::uint64_t kMagic = 0x32'50'41'4e'53'43'43'41;  // "ACCSNAP2"
constexpr std::size_t kSumTile = std::size_t{1} << 18;

std::uint64_t begin_of(int place) {
  return static_cast<std::uint64_t>(place) * kPlace;
}

}  // namespace

SnapshotFile::SnapshotFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (!file_) {
    throw Error(Errc::config, fmt::format("cannot open the memory for snapshots, {}: {}", path,
                                          std::generic_category().message(errno)));
  }
}

SnapshotFile::SnapshotFile()
    : path_("memory"), file_(::memfd_create("acc-snapshot-pieces", MFD_CLOEXEC)) {
  if (!file_) {
    throw Error(Errc::out_of_memory, fmt::format("no memory for a snapshot of another machine: {}",
                                                 std::generic_category().message(errno)));
  }
}

SnapshotFile::Head SnapshotFile::head(int place) const {
  Head head;
  std::array<std::byte, sizeof(Head)> bytes{};
  const ssize_t found =
      ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin_of(place)));
  if (found == static_cast<ssize_t>(bytes.size())) {  // else nothing has been written there
    std::memcpy(&head, bytes.data(), sizeof head);
  }
  return head.magic == kMagic ? head : Head{};
}

void SnapshotFile::write_head(int place, const Head& head) const {
  // The head is before the meta data, where no `at` counts.
  const auto bytes = std::as_bytes(std::span(&head, 1));
  if (::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin_of(place))) !=
      static_cast<ssize_t>(bytes.size())) {
    throw Error(Errc::out_of_memory, fmt::format("cannot write to the memory for snapshots, {}: {}",
                                                 path_, std::generic_category().message(errno)));
  }
}

void SnapshotFile::begin(int place, Head head) const {
  head.magic = kMagic;
  head.complete = 0;
  write_head(place, head);
}

void SnapshotFile::complete(int place, Head head) const {
  head.magic = kMagic;
  head.crc32 = sum(place, head);
  head.complete = 1;
  write_head(place, head);
}

void SnapshotFile::accept(int place, Head head) const {
  if (sum(place, head) != head.crc32) {
    throw Error(Errc::config,
                fmt::format("the snapshot of rank {} was damaged on its way", head.rank));
  }
  head.magic = kMagic;
  head.complete = 1;
  write_head(place, head);
}

void SnapshotFile::forget(int place) const {
  if (head(place).magic != 0) {
    write_head(place, Head{});
  }
}

int SnapshotFile::next(int pair) const {
  const Head first = head(pair);
  const Head second = head(pair + 1);
  return first.complete == 0 || (second.complete != 0 && first.number < second.number) ? pair
                                                                                       : pair + 1;
}

std::uint64_t SnapshotFile::newest(int pair) const {
  return std::max(head(pair).number, head(pair + 1).number);
}

bool SnapshotFile::is_whole(int place) const {
  const Head found = head(place);
  return found.complete != 0 && found.meta_nbytes <= kPlace - kHeadBytes &&
         found.values_nbytes <= kPlace - kHeadBytes - found.meta_nbytes &&
         sum(place, found) == found.crc32;
}

std::uint32_t SnapshotFile::sum(int place, const Head& head) const {
  const std::uint64_t nbytes = head.meta_nbytes + head.values_nbytes;
  std::uint32_t sum = 0;
  std::vector<std::byte> tile(std::min<std::uint64_t>(kSumTile, nbytes));
  for (std::uint64_t at = 0; at < nbytes; at += tile.size()) {
    const auto part = std::span(tile).first(std::min<std::uint64_t>(tile.size(), nbytes - at));
    read(place, at, part);
    sum = checkpoint::crc32(sum, part);
  }
  return sum;
}

std::string SnapshotFile::meta(int place) const {
  std::string meta(head(place).meta_nbytes, '\0');
  read(place, 0, std::as_writable_bytes(std::span(meta)));
  return meta;
}

void SnapshotFile::read(int place, std::uint64_t at, std::span<std::byte> to) const {
  std::uint64_t offset = begin_of(place) + kHeadBytes + at;
  while (!to.empty()) {
    const ssize_t found = ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (found < 0 && errno == EINTR) {
      continue;
    }
    if (found <= 0) {
      throw Error(Errc::config, fmt::format("cannot read the memory for snapshots, {}: {}", path_,
                                            found == 0 ? "it is too short"
                                                       : std::generic_category().message(errno)));
    }
    to = to.subspan(static_cast<std::size_t>(found));
    offset += static_cast<std::uint64_t>(found);
  }
}

void SnapshotFile::write(int place, std::uint64_t at, std::span<const std::byte> from) const {
  std::uint64_t offset = begin_of(place) + kHeadBytes + at;
  while (!from.empty()) {
    const ssize_t done =
        ::pwrite(file_.get(), from.data(), from.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      throw Error(errno == ENOMEM || errno == ENOSPC ? Errc::out_of_memory : Errc::config,
                  fmt::format("cannot write to the memory for snapshots, {}: {}", path_,
                              std::generic_category().message(errno)));
    }
    from = from.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

}  // namespace acc::state_dict
