// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/catalog/shared_bytes.hpp"

#include <algorithm>

namespace acc::checkpoint {
namespace {

/// True if both tensors are stored in the same places of the same files.
bool share_bytes(const StoredTensor& a, const StoredTensor& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.strides == b.strides &&
         std::ranges::equal(a.pieces, b.pieces, [](const StoredPiece& p, const StoredPiece& q) {
           return p.file == q.file && p.offset == q.offset && p.box == q.box;
         });
}

}  // namespace

const StoredTensor* SharedBytes::other(const StoredTensor& tensor) {
  // Tensors without elements share nothing, and those with a rule have places of their own.
  if (tensor.pieces.empty() || numel_of(tensor.shape) == 0) {
    return nullptr;
  }
  const StoredPiece& first = tensor.pieces.front();
  for (auto [it, end] = by_place_.equal_range({first.file, first.offset}); it != end; ++it) {
    if (share_bytes(*it->second, tensor)) {
      return it->second;
    }
  }
  by_place_.emplace(std::pair(first.file, first.offset), &tensor);
  return nullptr;
}

}  // namespace acc::checkpoint
