// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/gloo/exchange.hpp"
#include "kernels/kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

/// Algorithms of all_reduce on Gloo groups. Every number is sent in `code` or, without one, in
/// `dtype`. A rank takes what it sends into its own sum as well, so that all ranks have the same
/// result.
namespace acc::collectives {

/// Sums data, [numel], over the ranks in place.
struct AllReduce {
  std::uint32_t number;  ///< of the collective
  float* data;
  std::size_t numel;
  DType dtype;  ///< float32 if there is a code
  float scale;
  BlockCode code = {};
};
using AllReduceAlgorithm = WorkPtr (*)(GlooRanks& ranks, const AllReduce& call);

/// Every rank sends its array to every other one.
WorkPtr all_reduce_direct(GlooRanks& ranks, const AllReduce& call);
/// Each rank sums a slice and sends the sum to the others, so that it sends only 2 / ranks as much.
WorkPtr all_reduce_two_phase(GlooRanks& ranks, const AllReduce& call);
/// A pure function, so all ranks choose the same.
AllReduceAlgorithm choose_all_reduce(std::size_t ranks, std::size_t numel);

/// The memory that an all_reduce of a float32 array sends: the array itself, or a copy of it in a
/// 16-bit dtype.
class SentArray {
 public:
  SentArray(float* data, std::size_t numel, DType dtype)
      : data_(data), numel_(numel), dtype_(dtype) {
    if (dtype != DType::float32) {
      copy_ = std::make_shared<std::vector<std::byte>>(numel * nbytes_of(dtype));
      round(0, numel);
    }
  }
  [[nodiscard]] std::byte* data() const noexcept {
    return copy_ ? copy_->data() : reinterpret_cast<std::byte*>(data_);
  }
  /// Owner of `data`; null if that is the caller's array.
  [[nodiscard]] std::shared_ptr<void> owner() const noexcept { return copy_; }

  /// Copies elements [first, first + count) of the array to what is sent.
  void round(std::size_t first, std::size_t count) const {
    if (copy_) {
      kernels::cast(data_ + first, DType::float32, data() + first * nbytes_of(dtype_), dtype_,
                    count);
    }
  }
  /// Copies what was received to the whole array.
  void widen() const {
    if (copy_) {
      kernels::cast(data(), dtype_, data_, DType::float32, numel_);
    }
  }

 private:
  float* data_;
  std::size_t numel_;
  DType dtype_;
  std::shared_ptr<std::vector<std::byte>> copy_;
};

}  // namespace acc::collectives
