#pragma once

#include "acc/collectives/process_group.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace acc::collectives {

/// Group memory on the host that other ranks do not map. Page-aligned and zero-filled, because a
/// caller may protect single buffers by `mprotect`.
class PrivateBuffer final : public GroupBuffer {
 public:
  explicit PrivateBuffer(std::size_t nbytes) {
    const std::size_t rounded = (nbytes + 4095) / 4096 * 4096;
    data_ = static_cast<std::byte*>(std::aligned_alloc(4096, rounded));
    if (data_ == nullptr) {
      throw std::bad_alloc();
    }
    std::memset(data_, 0, rounded);
    nbytes_ = nbytes;
  }
  ~PrivateBuffer() override { std::free(data_); }
};

}  // namespace acc::collectives
