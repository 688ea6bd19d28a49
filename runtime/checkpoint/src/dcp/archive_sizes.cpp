// SPDX-License-Identifier: Apache-2.0
#include "dcp/archive_sizes.hpp"

#include "acc/checkpoint/torch/torch_file.hpp"

namespace acc::checkpoint::dcp {

std::uint64_t ArchiveSizes::add(Dtype dtype, const Shape& shape) {
  // The table is dropped at its limit, so that a tensor cut at many places cannot fill memory.
  if (known_.size() >= kMaxKnown) {
    known_.clear();
  }
  const std::uint64_t nbytes = static_cast<std::uint64_t>(numel_of(shape)) * size_of(dtype);
  const std::string pickle = torch::tensor_pickle({.dtype = dtype, .shape = shape});
  const std::uint64_t of_archive = torch::archive_layout(pickle.size(), {&nbytes, 1}).nbytes;
  known_.emplace(Key<Shape>{dtype, shape}, of_archive);
  return of_archive;
}

std::uint64_t archive_nbytes(const PlannedValue& value) {
  return torch::archive_layout(value.pickle_nbytes, {}).nbytes;
}

}  // namespace acc::checkpoint::dcp
