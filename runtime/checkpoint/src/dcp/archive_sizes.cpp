// SPDX-License-Identifier: Apache-2.0
#include "dcp/archive_sizes.hpp"

#include "acc/checkpoint/torch/torch_file.hpp"

namespace acc::checkpoint::dcp {

std::uint64_t ArchiveSizes::operator()(Dtype dtype, const Shape& shape) {
  std::map<Shape, std::uint64_t>& known = known_[dtype];
  if (const auto found = known.find(shape); found != known.end()) {
    return found->second;
  }
  // The table is dropped at its limit, so that a tensor cut at many places cannot fill memory.
  constexpr std::size_t kMaxKnown = std::size_t{1} << 16;
  if (known.size() >= kMaxKnown) {
    known.clear();
  }
  const std::uint64_t nbytes = static_cast<std::uint64_t>(numel_of(shape)) * size_of(dtype);
  const std::string pickle = torch::tensor_pickle({.dtype = dtype, .shape = shape});
  return known[shape] = torch::archive_layout(pickle.size(), {&nbytes, 1}).nbytes;
}

std::uint64_t archive_nbytes(const PlannedValue& value) {
  return torch::archive_layout(value.pickle_nbytes, {}).nbytes;
}

}  // namespace acc::checkpoint::dcp
