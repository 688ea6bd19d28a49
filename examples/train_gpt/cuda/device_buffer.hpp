#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace train_gpt::cuda {

/// Memory of the current GPU, allocated once before training. The content is undefined.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws Error(out_of_memory): `what` was to lie there, what is free, what the GPU has.
  DeviceMemory(std::size_t nbytes, const char* what);

  [[nodiscard]] void* data() const { return data_.get(); }

 private:
  struct Free {
    std::size_t nbytes;
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
};

/// Bytes in all DeviceMemory of this process.
std::int64_t device_bytes();

/// `count` elements of it.
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

/// Host memory that the GPU copies from and to without the host waiting.
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
