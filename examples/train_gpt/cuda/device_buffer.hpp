// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace train_gpt::cuda {

/// Memory of the current GPU. Allocated once before training; not initialised.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws Error(out_of_memory) with the requested, the free and the total memory. what: purpose
  /// of the memory, for the message.
  DeviceMemory(std::size_t nbytes, const char* what);

  [[nodiscard]] void* data() const { return data_.get(); }

 private:
  struct Free {
    std::size_t nbytes;
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
};

/// Returns the number of bytes in all DeviceMemory objects of this process.
std::int64_t device_bytes();

/// `count` elements of T in GPU memory.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::int64_t count, const char* what)
      : memory_(static_cast<std::size_t>(count) * sizeof(T), what) {}

  [[nodiscard]] T* data() const { return static_cast<T*>(memory_.data()); }

 private:
  DeviceMemory memory_;
};

/// Page-locked host memory. The GPU copies from and to it asynchronously.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(std::size_t nbytes, const char* what);

  [[nodiscard]] void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
};

}  // namespace train_gpt::cuda
