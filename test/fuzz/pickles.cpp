// SPDX-License-Identifier: Apache-2.0
// Fuzzes the pickle reader of checkpoints: an Error, or a tree whose size and depth match the
// counts.
#include "acc/base/error.hpp"
#include "input.hpp"
#include "pickle/reader.hpp"
#include "torch/tensor_value.hpp"

#include <span>
#include <string>

namespace {

using namespace acc::checkpoint;
using pickle::Value;

/// Returns the number of values in the tree. The recursion ends because the depth decreases.
std::uint64_t walk(const Value& value) {
  std::uint64_t count = 1;
  for (const auto& items : {value.items, value.entries}) {
    for (const Value* item : items) {
      acc::fuzz::require(item->depth < value.depth, "an item is less deep than its container");
      count += walk(*item);
    }
  }
  acc::fuzz::require(count <= value.expanded, "there are at most as many values as were counted");
  acc::fuzz::require(!value.describe().empty(), "a value has a description");
  acc::fuzz::require(value.pairs().size() % 2 == 0, "a key has a value");
  if (torch::is_tensor_value(value)) {
    try {
      const torch::TensorValue tensor = torch::tensor_value(value, "input");
      // With strides, the size is that of the part of the storage that holds the tensor.
      const std::uint64_t size = size_of(tensor.dtype);
      acc::fuzz::require(
          tensor.strides.empty()
              ? tensor.nbytes == static_cast<std::uint64_t>(numel_of(tensor.shape)) * size
              : tensor.nbytes >= size && tensor.nbytes % size == 0,
          "a tensor's size in bytes matches its shape and strides");
    } catch (const acc::Error& error) {
      acc::fuzz::require(
          error.code() == acc::Errc::config || error.code() == acc::Errc::not_supported,
          "an invalid tensor is Error(config), an unknown one Error(not_supported)");
    }
  }
  return count;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    std::size_t consumed = 0;
    const pickle::Values parsed = pickle::read(std::as_bytes(std::span(data, size)), "input",
                                               pickle::is_known_global, &consumed);
    acc::fuzz::require(consumed <= size, "reads are within the input");
    acc::fuzz::require(parsed.root().depth <= 1000, "nesting is bounded");
    if (parsed.root().expanded < 100'000) {
      walk(parsed.root());
    }
  } catch (const acc::Error& error) {
    acc::fuzz::require(
        error.code() == acc::Errc::config || error.code() == acc::Errc::not_supported,
        "an invalid pickle is Error(config), an unknown one Error(not_supported)");
  }
  return 0;
}
