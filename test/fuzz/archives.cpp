// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of torch.save archives: an Error, or records within the archive that do not
// overlap.
#include "acc/base/error.hpp"
#include "acc/checkpoint/archive/archive.hpp"
#include "input.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace acc::checkpoint;
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    acc::fuzz::require(offset <= size && out.size() <= size - offset,
                       "reads are within the archive");
    if (!out.empty()) {
      std::memcpy(out.data(), data + offset, out.size());
    }
  };
  try {
    std::vector<archive::Record> records = archive::read_records(read, size, "input");
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
      return std::pair(a.offset, a.nbytes) < std::pair(b.offset, b.nbytes);
    });
    std::uint64_t free = 0;
    for (const archive::Record& record : records) {
      acc::fuzz::require(record.offset >= free, "records do not overlap");
      acc::fuzz::require(record.offset <= size && record.nbytes <= size - record.offset,
                         "records are within the archive");
      free = record.offset + record.nbytes;
    }
  } catch (const acc::Error& error) {
    acc::fuzz::require(
        error.code() == acc::Errc::config || error.code() == acc::Errc::not_supported,
        "an invalid archive is Error(config), an unknown one Error(not_supported)");
  }
  return 0;
}
