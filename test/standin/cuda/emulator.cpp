// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/emulator.hpp"

#include "standin/cuda/address_check.hpp"
#include "standin/cuda/block.hpp"
#include "standin/settings.hpp"

#include <cstring>
#include <memory>

__thread uint3 threadIdx{};
__thread uint3 blockIdx{};
__thread uint3 blockDim{};
__thread uint3 gridDim{};

namespace standin {

__thread Thread* current_thread = nullptr;

namespace {

constexpr std::size_t kSharedRedzoneBytes = 256;

/// The host thread's dynamic shared memory, followed by a guard area in which overruns are found.
class SharedMemory {
 public:
  void start_block(std::size_t nbytes) {
    nbytes_ = nbytes;
    allow(storage_, sizeof storage_);
    std::memset(storage_, kPoison, nbytes + kSharedRedzoneBytes);
    forbid(storage_ + nbytes, sizeof storage_ - nbytes);
  }
  void end_block() const {
    for (std::size_t i = nbytes_; i < nbytes_ + kSharedRedzoneBytes; ++i) {
      if (storage_[i] != kPoison) {
        die("a kernel wrote " + std::to_string(i - nbytes_) + " bytes past its " +
            std::to_string(nbytes_) + " bytes of dynamic shared memory");
      }
    }
  }
  unsigned char* data() { return storage_; }

 private:
  std::size_t nbytes_ = 0;
  alignas(128) unsigned char storage_[kMaxSharedBytes + kSharedRedzoneBytes];
};

// On the heap, because a library that is loaded at run time has little space for thread-local
// variables.
SharedMemory& shared_memory() {
  static thread_local const auto memory = std::make_unique<SharedMemory>();
  return *memory;
}

FiberThread& self() {
  return *static_cast<FiberThread*>(current_thread);
}

}  // namespace

void* dynamic_shared() {
  return shared_memory().data();
}

void run_grid(const GridShape& shape, const std::function<void()>& kernel) {
  blockDim = {shape.block.x, shape.block.y, shape.block.z};
  gridDim = {shape.grid.x, shape.grid.y, shape.grid.z};
  Block block(shape, kernel);
  for (unsigned z = 0; z < shape.grid.z; ++z) {
    for (unsigned y = 0; y < shape.grid.y; ++y) {
      for (unsigned x = 0; x < shape.grid.x; ++x) {
        shared_memory().start_block(shape.shared_bytes);
        blockIdx = {x, y, z};
        block.run();
        shared_memory().end_block();
      }
    }
  }
}

void block_barrier(std::source_location where) {
  self().block->barrier(self(), where);
}

void warp_operation(unsigned mask, WarpOperation operation, void* arguments, const char* name,
                    std::source_location where) {
  self().block->warp_operation(self(), {mask, operation, name, where}, arguments);
}

}  // namespace standin
