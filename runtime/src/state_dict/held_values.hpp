// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"
#include "sharding/late_copies.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace acc::state_dict {

/// Elements of an array that a save reads on this rank: in the array's own memory, or in a copy in
/// host memory.
class HeldValues {
 public:
  /// When the array's values may change.
  enum class Changes {
    at_any_time,
    announced,  ///< after a call of the model's LateCopies only
  };
  /// values: elements [first, first + numel) of the array, of `size` bytes each, in memory of
  /// `device`. Both outlive this object, or the call of `copy_to`.
  HeldValues(device::Device& device, const void* values, std::int64_t first, std::int64_t numel,
             std::size_t size, Changes changes)
      : device_(&device),
        values_(static_cast<const std::byte*>(values)),
        first_(first),
        numel_(numel),
        size_(size),
        changes_(changes) {}

  /// Copies elements [begin, begin + numel) of an array to host memory.
  using Reader = std::function<void(std::int64_t begin, std::int64_t numel, std::byte* to)>;
  /// The same of an array that is kept in another form.
  HeldValues(Reader reader, std::int64_t first, std::int64_t numel, std::size_t size)
      : reader_(std::move(reader)), first_(first), numel_(numel), size_(size) {}

  [[nodiscard]] std::size_t nbytes() const noexcept {
    return static_cast<std::size_t>(numel_) * size_;
  }
  [[nodiscard]] Changes changes() const noexcept { return changes_; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {values_, nbytes()}; }
  /// Leaves out all elements but [begin, end) of the array.
  void narrow(std::int64_t begin, std::int64_t end);
  /// Copies to bytes [at, at + nbytes()) of `memory`, which is host memory. Values that may change
  /// at any time are copied on the compute stream, others by `copy`, which copies to `memory`, or
  /// on `side`, the stream of a GPU. Later reads are from there, and may be on any thread once the
  /// compute stream has reached this point and `copy` has finished.
  void copy_to(device::Memory& memory, std::size_t at, sharding::LateCopy& copy,
               device::Stream* side);
  [[nodiscard]] bool is_copy() const noexcept { return device_ == nullptr && !reader_; }
  /// Passes elements [begin, begin + numel) of the array on, in order.
  void read(std::int64_t begin, std::int64_t numel,
            const std::function<void(std::span<const std::byte> bytes)>& visit) const;
  void read_all(const std::function<void(std::span<const std::byte> bytes)>& visit) const {
    read(first_, numel_, visit);
  }

 private:
  Reader reader_;                     ///< in place of `device_` and `values_`
  device::Device* device_ = nullptr;  ///< null: a copy
  const std::byte* values_ = nullptr;
  std::int64_t first_;
  std::int64_t numel_;
  std::size_t size_;
  Changes changes_ = Changes::at_any_time;
};
using HeldPtr = std::shared_ptr<HeldValues>;

}  // namespace acc::state_dict
