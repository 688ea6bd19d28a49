// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/input_file.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "files/object_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <vector>

namespace acc::checkpoint {

namespace {

Error truncated(const std::filesystem::path& path, std::uint64_t expected, std::uint64_t found) {
  return {Errc::config, path.string() + " is truncated: at least " + std::to_string(expected) +
                            " bytes expected, " + std::to_string(found) + " found"};
}

}  // namespace

// pread may return fewer bytes than asked for, and 0 if the file was truncated after it was opened.
void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  const std::uint64_t end = offset + out.size();
  if (end < offset || end > opened_.nbytes) {
    throw truncated(path_, end < offset ? std::numeric_limits<std::uint64_t>::max() : end,
                    opened_.nbytes);
  }
  if (opened_.object) {
    return opened_.object->read(offset, out);
  }
  while (!out.empty()) {
    const ssize_t count =
        ::pread(opened_.fd.get(), out.data(), out.size(), static_cast<off_t>(end - out.size()));
    if (count < 0 && errno != EINTR) {
      throw file_error("read", path_, errno);
    }
    if (count == 0) {  // the file was truncated after it was opened
      throw truncated(path_, end, end - out.size());
    }
    out = out.subspan(count > 0 ? static_cast<std::size_t>(count) : 0);
  }
}

std::string InputFile::text(std::uint64_t most) const {
  std::string text(std::min(nbytes(), most), '\0');
  read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t nbytes) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(nbytes, 1 << 20));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < nbytes; done += buffer.size()) {
    const auto piece =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), nbytes - done));
    file.read(offset + done, piece);
    crc = crc32(crc, piece);
  }
  return crc;
}

}  // namespace acc::checkpoint
