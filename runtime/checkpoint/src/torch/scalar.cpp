// SPDX-License-Identifier: Apache-2.0
#include "torch/scalar.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

namespace acc::checkpoint::torch {

namespace {

// Reads the whole record, because its checksum covers all of it. A record without a checksum, or a
// large one (a slice of a big tensor), is read only where it is needed.
std::array<std::byte, 8> element_of(const TorchFile& file, const pickle::Node& node,
                                    const TensorRef& ref) {
  std::array<std::byte, 8> element{};
  const auto wanted = std::span(element).first(size_of(ref.dtype));
  const StoredBytes& bytes = ref.bytes;
  if (bytes.record_crc32 == 0 || bytes.record_nbytes > kBlock) {
    file.file().read(bytes.offset, wanted);
    return element;
  }
  std::vector<std::byte> record(bytes.record_nbytes);
  file.file().read(bytes.record_offset, record);
  if (crc32(0, record) != bytes.record_crc32) {
    throw Error(Errc::config, node.where() + ": damaged: its checksum does not match its bytes");
  }
  std::memcpy(wanted.data(), record.data() + (bytes.offset - bytes.record_offset), wanted.size());
  return element;
}

}  // namespace

double scalar(const TorchFile& file, const pickle::Node& node) {
  if (!TorchFile::is_tensor(node.value())) {
    return node.real();
  }
  const TensorRef ref = file.tensor(node.value());
  const bool is_integer = ref.dtype == Dtype::i64 || ref.dtype == Dtype::i32;
  if (numel_of(ref.shape) != 1 || (!is_real(ref.dtype) && !is_integer)) {
    node.refuse("a number, or a tensor with one element");
  }
  const std::array<std::byte, 8> bytes = element_of(file, node, ref);
  if (ref.dtype == Dtype::i64) {
    return static_cast<double>(std::bit_cast<std::int64_t>(bytes));
  }
  if (ref.dtype == Dtype::i32) {
    std::int32_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  double value = 0.0;
  convert(bytes.data(), ref.dtype, &value, Dtype::f64, 1);
  return value;
}

// 2^53 is the largest range in which a double represents every integer.
std::int64_t count(const TorchFile& file, const pickle::Node& node) {
  const double value = scalar(file, node);
  if (!(value >= 0.0 && value <= 9007199254740992.0 && std::trunc(value) == value)) {
    node.refuse("a count (an integer from 0 to 2^53)");
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace acc::checkpoint::torch
