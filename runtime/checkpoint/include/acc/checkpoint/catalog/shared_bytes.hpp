// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"

#include <map>
#include <utility>

namespace acc::checkpoint {

/// Finds the tensors of a catalog that are stored once under several names (tied weights), by the
/// place of their bytes.
class SharedBytes {
 public:
  /// Returns the tensor that was passed before with the same bytes. Null if there is none; then
  /// this tensor is remembered. It must outlive this object.
  const StoredTensor* other(const StoredTensor& tensor);

 private:
  std::multimap<std::pair<std::uint32_t, std::uint64_t>, const StoredTensor*> by_place_;
};

}  // namespace acc::checkpoint
