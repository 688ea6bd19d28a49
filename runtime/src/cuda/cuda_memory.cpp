// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_memory.hpp"

#include "acc/base/error.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/page_locked.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

namespace acc::cuda {
namespace {

// Memory of a GPU for a caching allocator.
device::RawMemory gpu_memory(int device) {
  return {.allocate = [=](std::size_t nbytes) -> std::byte* {
            check(cudaSetDevice(device), "cudaSetDevice", device);
            void* data = nullptr;
            const cudaError_t status = cudaMalloc(&data, nbytes);
            if (status == cudaErrorMemoryAllocation) {
              (void)cudaGetLastError();
              return nullptr;
            }
            check(status, "cudaMalloc", device);
            return static_cast<std::byte*>(data);
          },
          .release =
              [=](std::byte* data) {
                (void)cudaSetDevice(device);
                (void)cudaDeviceSynchronize();  // queued work may still use the memory
                (void)cudaFree(data);
              }};
}

double gib(auto nbytes) {
  return static_cast<double>(nbytes) / static_cast<double>(std::int64_t{1} << 30);
}

std::string amount(auto nbytes) {
  const double mib = 1024.0 * gib(nbytes);
  return mib < 102.4 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024.0);
}

}  // namespace

// Device memory. Returns to the cache without waiting: the next owner uses it on the compute
// stream first, behind the work that used it before (see device.hpp, Memory).
class MemoryPool::Piece final : public device::Memory {
 public:
  Piece(std::shared_ptr<MemoryPool> pool, std::byte* data, std::size_t nbytes, std::string what)
      : pool_(std::move(pool)), what_(std::move(what)) {
    data_ = data;
    nbytes_ = nbytes;
    pool_->ledger_.add(static_cast<std::int64_t>(nbytes_), what_);
  }
  ~Piece() override {
    pool_->ledger_.add(-static_cast<std::int64_t>(nbytes_), what_);
    pool_->gpu_.release(data_);
  }

 private:
  std::shared_ptr<MemoryPool> pool_;
  std::string what_;
};

// Page-locked host memory.
class MemoryPool::HostPiece final : public device::Memory {
 public:
  HostPiece(std::shared_ptr<MemoryPool> pool, std::byte* data, std::size_t nbytes)
      : pool_(std::move(pool)) {
    data_ = data;
    nbytes_ = nbytes;
    pool_->ledger_.add_host(static_cast<std::int64_t>(nbytes_));
  }
  ~HostPiece() override {
    pool_->ledger_.add_host(-static_cast<std::int64_t>(nbytes_));
    pool_->host_.release(data_);
  }

 private:
  std::shared_ptr<MemoryPool> pool_;
};

MemoryPool::MemoryPool(int device)
    : device_(device), gpu_(gpu_memory(device)), host_(page_locked_memory(device)) {}

device::MemoryPtr MemoryPool::allocate(std::size_t nbytes, std::string_view what) {
  std::byte* const data = gpu_.allocate(nbytes);
  if (data == nullptr) {
    throw Error(Errc::out_of_memory, does_not_fit(nbytes, what));
  }
  return std::make_shared<Piece>(shared_from_this(), data, nbytes, std::string(what));
}

device::MemoryPtr MemoryPool::allocate_host(std::size_t nbytes, std::string_view what) {
  std::byte* const data = host_.allocate(nbytes);
  if (data == nullptr) {
    throw Error(
        Errc::out_of_memory,
        fmt::format("cuda:{}: out of memory: cannot allocate {} of page-locked host memory for {}: "
                    "this rank holds {} of it; the machine is short of memory, or limits locked "
                    "memory (ulimit -l, the container's limit)",
                    device_, amount(nbytes), what, amount(ledger_.figures().host_allocated)));
  }
  return std::make_shared<HostPiece>(shared_from_this(), data, nbytes);
}

void MemoryPool::account(std::int64_t nbytes, std::string_view what) {
  ledger_.add(nbytes, what);
  accounted_ += nbytes;
}

device::MemoryMetrics MemoryPool::figures() const {
  device::MemoryMetrics figures = ledger_.figures();
  figures.reserved = static_cast<std::int64_t>(gpu_.reserved()) + accounted_;
  return figures;
}

std::string MemoryPool::does_not_fit(std::size_t nbytes, std::string_view what) const {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", device_);
  const device::MemoryMetrics held = figures();
  std::string holders;
  for (const auto& holder : held.holders) {
    holders +=
        fmt::format("{}{} of {}", holders.empty() ? "" : ", ", amount(holder.nbytes), holder.what);
  }
  // Memory that the driver counts as used and that is not in this pool.
  const std::int64_t others =
      static_cast<std::int64_t>(total) - static_cast<std::int64_t>(free) - held.reserved;
  return fmt::format(
      "cuda:{}: out of memory (OOM): {} for {} do not fit: {:.1f} of {:.1f} GiB are free; this "
      "rank holds {}, and {} cached and unused; other processes and CUDA itself hold {}",
      device_, amount(nbytes), what, gib(free), gib(total), holders.empty() ? "nothing" : holders,
      amount(held.reserved - held.allocated), amount(std::max<std::int64_t>(others, 0)));
}

}  // namespace acc::cuda
