// SPDX-License-Identifier: Apache-2.0
#include "sharding/late_copies.hpp"

#include "kernels/stream_copy.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace acc::sharding {
namespace {

/// Bytes that one thread takes at a time: the longest that the other one waits for.
constexpr std::size_t kPiece = std::size_t{1} << 18;

}  // namespace

LateCopy::LateCopy(device::MemoryPtr to)
    : put_([memory = std::move(to)](std::uint64_t at, std::span<const std::byte> bytes) {
        kernels::stream_copy(memory->data() + at, bytes.data(), bytes.size());
      }) {}

void LateCopy::add(std::span<const std::byte> values, std::uint64_t at) {
  const std::size_t first = pieces_.size();
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    pieces_.emplace_back(values.subspan(begin, std::min(kPiece, values.size() - begin)),
                         at + begin);
  }
  arrays_[values.data()] = {values.size(), first, pieces_.size() - first, nullptr};
}

void LateCopy::add(std::span<const std::byte> values, device::EventPtr copied) {
  arrays_[values.data()] = {values.size(), 0, 0, std::move(copied)};
}

void LateCopy::copy(Piece& piece) noexcept {
  if (!failed_.load(std::memory_order_relaxed)) {
    try {
      put_(piece.at, piece.values);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = failure_ != nullptr ? failure_ : std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
  }
  piece.state.store(State::copied, std::memory_order_release);
  piece.state.notify_all();
}

void LateCopy::end_pieces(std::size_t first, std::size_t count) {
  for (std::size_t i = first; i < first + count; ++i) {
    State expected = State::missing;
    if (pieces_[i].state.compare_exchange_strong(expected, State::taken,
                                                 std::memory_order_acquire)) {
      copy(pieces_[i]);
    }
  }
  for (std::size_t i = first; i < first + count; ++i) {
    pieces_[i].state.wait(State::taken, std::memory_order_acquire);
  }
}

void LateCopy::finish() {
  end_pieces(0, pieces_.size());
  for (const auto& [begin, each] : arrays_) {
    if (each.copied != nullptr) {
      each.copied->synchronize();
    }
  }
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

void LateCopy::end_array(device::Device& device, const Array& array) {
  if (array.copied != nullptr) {
    device.wait(device.compute(), *array.copied);
  } else {
    end_pieces(array.first_piece, array.pieces);
  }
}

void LateCopy::before_write(device::Device& device, std::span<const std::byte> values) {
  auto each = arrays_.upper_bound(values.data());
  if (each != arrays_.begin() &&
      std::prev(each)->first + std::prev(each)->second.nbytes > values.data()) {
    --each;
  }
  for (; each != arrays_.end() && each->first < values.data() + values.size(); ++each) {
    end_array(device, each->second);
  }
}

void LateCopy::before_writes(device::Device& device) {
  for (const auto& [begin, each] : arrays_) {
    end_array(device, each);
  }
}

void LateCopy::end() noexcept {
  ended_.store(true, std::memory_order_release);
  ended_.notify_all();
}

void LateCopies::forget_ended() {
  std::erase_if(copies_, [](const Known& each) { return each.copy->ended(); });
}

void LateCopies::add(std::shared_ptr<LateCopy> copy, std::optional<std::int64_t> ends_before) {
  forget_ended();
  copies_.push_back({std::move(copy), ends_before});
}

void LateCopies::before_write(device::Device& device, std::span<const std::byte> values) {
  for (const Known& each : copies_) {
    each.copy->before_write(device, values);
  }
}

void LateCopies::before_writes(device::Device& device) {
  for (const Known& each : copies_) {
    each.copy->before_writes(device);
  }
}

void LateCopies::before_end(device::Device& device) noexcept {
  try {
    before_writes(device);
  } catch (const std::exception&) {  // the device has failed: nothing is copied any more
  }
}

void LateCopies::before_step(std::int64_t step) {
  for (const Known& each : copies_) {
    if (each.ends_before && step >= *each.ends_before) {
      each.copy->await_end();
    }
  }
  forget_ended();
}

void LateCopies::expose_weights(device::Device& device) {
  exposed_ = true;
  before_writes(device);
}

device::Stream& LateCopies::stream(device::Device& device) {
  if (stream_ == nullptr) {
    stream_ = device.make_stream("snapshot");
  }
  return *stream_;
}

}  // namespace acc::sharding
