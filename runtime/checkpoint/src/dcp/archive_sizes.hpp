// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/dcp/folder_plan.hpp"

#include <cstdint>
#include <map>

namespace acc::checkpoint::dcp {

/// Sizes of archives of one tensor, cached by dtype and shape: a large world has many equal ones.
class ArchiveSizes {
 public:
  std::uint64_t operator()(Dtype dtype, const Shape& shape);

 private:
  std::map<Dtype, std::map<Shape, std::uint64_t>> known_;
};

/// Returns the size of the archive of a pickled value.
std::uint64_t archive_nbytes(const PlannedValue& value);

}  // namespace acc::checkpoint::dcp
