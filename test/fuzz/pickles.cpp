// A pickle of a checkpoint: an Error, or a tree whose size and depth are what was counted.
#include "acc/base/error.hpp"
#include "checkpoint/pickle/reader.hpp"
#include "checkpoint/torch/tensor_value.hpp"
#include "input.hpp"

#include <span>
#include <string>

namespace {

using namespace acc::checkpoint;
using pickle::Value;

/// Values in it; recursion ends because depth falls.
std::uint64_t walk(const Value& value) {
  std::uint64_t count = 1;
  for (const auto& items : {value.items, value.entries}) {
    for (const Value* item : items) {
      acc::fuzz::require(item->depth < value.depth, "an item is less deep than what holds it");
      count += walk(*item);
    }
  }
  acc::fuzz::require(count <= value.expanded, "not more values than were counted");
  acc::fuzz::require(!value.describe().empty(), "a value has words");
  acc::fuzz::require(value.pairs().size() % 2 == 0, "a key has a value");
  if (torch::is_tensor_value(value)) {
    try {
      const torch::TensorValue tensor = torch::tensor_value(value, "input");
      acc::fuzz::require(tensor.nbytes == static_cast<std::uint64_t>(numel_of(tensor.shape)) *
                                              size_of(tensor.dtype),
                         "a tensor's bytes are its elements'");
    } catch (const acc::Error& error) {
      acc::fuzz::require(error.code() == acc::Errc::config, "a bad tensor is a bad file");
    }
  }
  return count;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    std::size_t consumed = 0;
    const pickle::Document document = pickle::read(std::as_bytes(std::span(data, size)), "input",
                                                   pickle::is_known_global, &consumed);
    acc::fuzz::require(consumed <= size, "no more read than there is");
    acc::fuzz::require(document.root().depth <= 1000, "nesting is bounded");
    if (document.root().expanded < 100'000) {
      walk(document.root());
    }
  } catch (const acc::Error& error) {
    acc::fuzz::require(error.code() == acc::Errc::config, "a bad pickle is a bad file");
  }
  return 0;
}
