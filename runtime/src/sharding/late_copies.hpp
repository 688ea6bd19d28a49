// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace acc::sharding {

/// A copy of arrays of one rank that is made after the arrays have been chosen, while the training
/// goes on. Another thread makes it (`finish`). The thread that trains copies what is still missing
/// of an array before it changes the array (`LateCopies::before_write`). Each piece is copied once,
/// by the thread that takes it first.
class LateCopy {
 public:
  /// Takes bytes of the copy that begin at `at`. Called by both threads, for different pieces at
  /// the same time. May throw.
  using Put = std::function<void(std::uint64_t at, std::span<const std::byte> bytes)>;
  explicit LateCopy(Put put) : put_(std::move(put)) {}
  /// A copy in host memory, which lives as long as this object.
  explicit LateCopy(device::MemoryPtr to);

  /// Adds an array in host memory, which is copied to `at` later.
  void add(std::span<const std::byte> values, std::uint64_t at);
  /// Adds an array of a device, which has been copied when `copied` is reached.
  void add(std::span<const std::byte> values, device::EventPtr copied);

  /// Copies every piece that has not been taken, in the order of `add`, and waits for the others.
  /// Throws what `put` threw first; the pieces after that are left out. Any thread, once all arrays
  /// have been added.
  void finish();
  /// Ends the copy of every array that overlaps `values`, or orders the compute stream of `device`
  /// after it.
  void before_write(device::Device& device, std::span<const std::byte> values);
  /// The same for all arrays.
  void before_writes(device::Device& device);

  /// Says that nothing waits for the copy any more. Any thread.
  void end() noexcept;
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  void await_end() const noexcept { ended_.wait(false, std::memory_order_acquire); }

 private:
  enum class State : std::uint8_t { missing, taken, copied };
  struct Piece {
    Piece(std::span<const std::byte> part, std::uint64_t begin) : values(part), at(begin) {}
    std::span<const std::byte> values;
    std::uint64_t at;
    std::atomic<State> state{State::missing};
  };
  struct Array {
    std::size_t nbytes;
    std::size_t first_piece;
    std::size_t pieces;
    device::EventPtr copied;  ///< null: in host memory, copied by pieces
  };
  void end_pieces(std::size_t first, std::size_t count);
  void copy(Piece& piece) noexcept;
  void end_array(device::Device& device, const Array& array);

  Put put_;
  std::map<const std::byte*, Array> arrays_;  ///< by their begin; none overlap
  std::deque<Piece> pieces_;                  ///< of arrays in host memory
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;  ///< guarded by mutex_
  std::atomic<bool> ended_{false};
};

/// The late copies of one model's state that are under way. Everything that changes master weights
/// or moments calls `before_write` or `before_writes` first. Used by the thread that trains.
class LateCopies {
 public:
  /// ends_before: number of the step that waits for the end of the copy, before the ranks meet in
  /// it; absent: no step does, and each waits for the arrays that it changes.
  void add(std::shared_ptr<LateCopy> copy, std::optional<std::int64_t> ends_before = {});
  /// Called before `values` are changed, by this thread or by work on the compute stream of
  /// `device`, whose memory they are.
  void before_write(device::Device& device, std::span<const std::byte> values);
  /// Called before any array is changed.
  void before_writes(device::Device& device);
  /// Called before any array is freed. A failure of the device is not reported.
  void before_end(device::Device& device) noexcept;
  /// Called before the ranks meet in step number `step`, which counts from 1.
  void before_step(std::int64_t step);

  /// Called when the program gets memory of weights, which it may change at any time.
  void expose_weights(device::Device& device);
  /// True if only `before_writes` announces changes of moments, and nothing announces those of
  /// weights.
  [[nodiscard]] bool weights_are_exposed() const noexcept { return exposed_; }
  /// The stream for copies from a GPU.
  device::Stream& stream(device::Device& device);

 private:
  struct Known {
    std::shared_ptr<LateCopy> copy;
    std::optional<std::int64_t> ends_before;
  };
  void forget_ended();

  std::vector<Known> copies_;
  bool exposed_ = false;
  device::StreamPtr stream_;
};

}  // namespace acc::sharding
