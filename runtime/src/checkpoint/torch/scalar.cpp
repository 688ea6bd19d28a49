#include "checkpoint/torch/scalar.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <span>

namespace acc::checkpoint::torch {

double scalar(const TorchFile& file, const pickle::Node& node) {
  if (!TorchFile::is_tensor(node.value())) {
    return node.real();
  }
  const TensorRef ref = file.tensor(node.value());
  if (numel_of(ref.shape) != 1 || (!is_real(ref.dtype) && ref.dtype != Dtype::i64)) {
    node.fail("a number, or a tensor of one");
  }
  std::array<std::byte, 8> bytes{};
  file.file().read(ref.bytes.offset, std::span(bytes).first(size_of(ref.dtype)));
  if (ref.dtype == Dtype::i64) {
    return static_cast<double>(std::bit_cast<std::int64_t>(bytes));
  }
  double value = 0.0;
  convert(bytes.data(), ref.dtype, &value, Dtype::f64, 1);
  return value;
}

std::int64_t count(const TorchFile& file, const pickle::Node& node) {
  const double value = scalar(file, node);
  if (!(value >= 0.0 && value <= 9007199254740992.0 && std::trunc(value) == value)) {
    node.fail("a count");
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace acc::checkpoint::torch
