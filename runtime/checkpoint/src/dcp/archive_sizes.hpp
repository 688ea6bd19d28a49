// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/dcp/folder_plan.hpp"

#include <cstdint>
#include <unordered_map>

namespace acc::checkpoint::dcp {

/// Sizes of archives of one tensor, cached by dtype and shape: a large world has many equal ones.
class ArchiveSizes {
 public:
  std::uint64_t operator()(Dtype dtype, const Shape& shape) {
    const auto found = known_.find(Key<const Shape&>{dtype, shape});
    return found != known_.end() ? found->second : add(dtype, shape);
  }

 private:
  static constexpr std::size_t kMaxKnown = std::size_t{1} << 16;
  template <typename S>
  struct Key {
    Dtype dtype;
    S shape;
  };
  // Transparent hash and equality, so that a lookup copies no shape.
  struct Hash {
    using is_transparent = void;
    template <typename S>
    std::size_t operator()(const Key<S>& key) const noexcept {
      auto hash = static_cast<std::uint64_t>(key.dtype);
      for (const std::int64_t extent : key.shape) {
        hash = (hash ^ static_cast<std::uint64_t>(extent)) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 32U;
      }
      return hash;
    }
  };
  struct Equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const Key<A>& a, const Key<B>& b) const noexcept {
      return a.dtype == b.dtype && a.shape == b.shape;
    }
  };

  std::uint64_t add(Dtype dtype, const Shape& shape);

  std::unordered_map<Key<Shape>, std::uint64_t, Hash, Equal> known_;
};

/// Returns the size of the archive of a pickled value.
std::uint64_t archive_nbytes(const PlannedValue& value);

}  // namespace acc::checkpoint::dcp
