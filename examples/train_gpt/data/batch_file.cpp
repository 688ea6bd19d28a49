// SPDX-License-Identifier: Apache-2.0
#include "data/batch_file.hpp"

#include <acc/base/error.hpp>

#include <cstring>
#include <regex>
#include <string_view>

namespace train_gpt {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw acc::Error(acc::Errc::config, path + ": " + what);
}

struct Header {
  BatchFileShape shape;
  std::size_t data_offset;
};

std::int64_t dimension(const std::smatch& match, std::size_t index) {
  return std::stoll(match[index].str());
}

/// Parses the header of a .npy file. The header is the text of a Python dict; a regular expression
/// is enough for the single form that is accepted.
Header parse_header(const MappedFile& file) {
  // magic (6 bytes), version (2), header length (2, little-endian), a Python dict as text
  constexpr std::size_t kPrefix = 10;
  constexpr std::string_view kMagicAndVersion("\x93NUMPY\x01\x00", 8);
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < kPrefix || text.substr(0, 8) != kMagicAndVersion) {
    fail(file.path(), "not a .npy file of version 1");
  }
  const std::size_t length = bytes[8] + 256u * bytes[9];
  if (text.size() < kPrefix + length) {
    fail(file.path(), "the file ends within its header");
  }
  const std::string header(text.substr(kPrefix, length));
  static const std::regex shape_pattern(R"('shape': *\((\d{1,18}), *(\d{1,18}), *(\d{1,18}),?\))");
  std::smatch match;
  if (header.find("'descr': '<i4'") == std::string::npos ||
      header.find("'fortran_order': False") == std::string::npos ||
      !std::regex_search(header, match, shape_pattern)) {
    fail(file.path(), "expected little-endian int32 [steps, rows, seq_len + 1], row-major; got " +
                          header.substr(0, header.find_last_not_of(" \n") + 1));
  }
  return {{dimension(match, 1), dimension(match, 2), dimension(match, 3)}, kPrefix + length};
}

/// Checks the shape and that the file is long enough for it.
void check_header(const MappedFile& file, const Header& header) {
  const BatchFileShape& s = header.shape;
  if (s.steps < 1 || s.rows < 1 || s.columns < 2) {
    fail(file.path(), "empty batches: at least one step, one row and two columns are needed");
  }
  // Computed in floating point, because the product of a damaged header may overflow an integer.
  const double wanted = 4.0 * static_cast<double>(s.steps) * static_cast<double>(s.rows) *
                        static_cast<double>(s.columns);
  const std::size_t found = file.bytes().size() - header.data_offset;
  if (static_cast<double>(found) < wanted) {
    fail(file.path(), "truncated: " + std::to_string(found) +
                          " bytes of data, its shape needs 4 bytes for each of " +
                          std::to_string(s.steps) + " x " + std::to_string(s.rows) + " x " +
                          std::to_string(s.columns));
  }
}

}  // namespace

BatchFileShape read_batch_file_shape(const std::string& path) {
  const MappedFile file(path);
  const Header header = parse_header(file);
  check_header(file, header);
  return header.shape;
}

BatchFile::BatchFile(const std::string& path, std::int64_t vocab) : file_(path) {
  const Header header = parse_header(file_);
  check_header(file_, header);
  shape_ = header.shape;
  ids_ = file_.bytes().data() + header.data_offset;
  check_vocabulary(vocab);
}

// The header's length need not be a multiple of 4, so the ids may be unaligned.
std::int32_t BatchFile::id(std::int64_t index) const {
  std::int32_t value;
  std::memcpy(&value, ids_ + index * static_cast<std::int64_t>(sizeof(value)), sizeof(value));
  return value;
}

void BatchFile::check_vocabulary(std::int64_t vocab) const {
  const std::int64_t count = shape_.steps * shape_.rows * shape_.columns;
  for (std::int64_t i = 0; i < count; ++i) {
    if (id(i) < 0 || id(i) >= vocab) {
      const std::int64_t row = i / shape_.columns;
      fail_outside_vocabulary(file_.path(),
                              "step " + std::to_string(row / shape_.rows) + ", row " +
                                  std::to_string(row % shape_.rows) + ", column " +
                                  std::to_string(i % shape_.columns),
                              id(i), vocab);
    }
  }
}

void BatchFile::read(const BatchPosition& position, Batch& batch) const {
  const std::int64_t T = batch.shape.time;
  const std::int64_t first_row = position.step * shape_.rows + position.sequence;
  for (std::int64_t n = 0; n < batch.shape.rows(); ++n) {
    const std::int64_t index = (first_row + n / T) * shape_.columns + n % T;
    batch.inputs[static_cast<std::size_t>(n)] = id(index);
    batch.targets[static_cast<std::size_t>(n)] = id(index + 1);
  }
}

}  // namespace train_gpt
