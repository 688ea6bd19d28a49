// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/registered_arena.hpp"

#include "acc/base/error.hpp"
#include "cuda/cuda_error.hpp"

#include <algorithm>
#include <utility>

namespace acc::cuda {
namespace {

constexpr int kSymmetricWindow = 1;           // NCCL_WIN_COLL_SYMMETRIC
constexpr std::size_t kPieceAlignment = 512;  // as of Device::allocate
constexpr std::size_t kLargestSmall = RegisteredArena::kGranularity / 4;

std::size_t rounded(std::size_t nbytes, std::size_t granularity) {
  return (std::max(nbytes, std::size_t{1}) + granularity - 1) / granularity * granularity;
}

}  // namespace

/// One allocation of NCCL and its registration.
class RegisteredArena::Segment {
 public:
  Segment(std::shared_ptr<Communicator> communicator, device::DevicePtr device, std::byte* data,
          std::size_t nbytes, const char* what)
      : communicator_(std::move(communicator)),
        device_(std::move(device)),
        data_(data),
        nbytes_(nbytes),
        what_(what) {
    device_->account(static_cast<std::int64_t>(nbytes_), what_);
    // Ordered on the compute stream, like memory of Device::allocate.
    device_->zero(data_, nbytes_, device_->compute());
    register_memory();
  }
  ~Segment() {
    try {
      // Unlike memory of the device's cache, this is freed at once, so its last use must be
      // complete.
      device_->record(device_->compute())->synchronize();
      deregister_memory();
    } catch (const Error&) {  // the group is aborted, and with it the registration
    }
    communicator_->api().mem_free(data_);
    device_->account(-static_cast<std::int64_t>(nbytes_), what_);
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] bool contains(const void* address) const noexcept {
    return address >= data_ && address < data_ + nbytes_;
  }

 private:
  /// Registers a symmetric window (NCCL 2.27). On machines that do not support windows NCCL returns
  /// none; then a plain registration still saves the copy to NCCL's own buffers.
  void register_memory() {
    const NcclApi& api = communicator_->api();
    if (api.comm_window_register != nullptr) {
      window_ = communicator_->make("registering memory", [&](ncclComm_t comm, void** window) {
        return api.comm_window_register(comm, data_, nbytes_, window, kSymmetricWindow);
      });
    }
    if (window_ == nullptr) {
      handle_ = communicator_->make("registering memory", [&](ncclComm_t comm, void** handle) {
        return api.comm_register(comm, data_, nbytes_, handle);
      });
    }
  }

  void deregister_memory() {
    const NcclApi& api = communicator_->api();
    if (window_ != nullptr) {
      communicator_->call("deregistering memory", [&](ncclComm_t comm) {
        return api.comm_window_deregister(comm, window_);
      });
    }
    if (handle_ != nullptr) {
      communicator_->call("deregistering memory",
                          [&](ncclComm_t comm) { return api.comm_deregister(comm, handle_); });
    }
  }

  std::shared_ptr<Communicator> communicator_;
  device::DevicePtr device_;
  std::byte* data_;
  std::size_t nbytes_;
  const char* what_;
  void* window_ = nullptr;  ///< symmetric window, or null
  void* handle_ = nullptr;  ///< plain registration, used if there is no window
};

class RegisteredArena::Piece final : public collectives::GroupBuffer {
 public:
  Piece(std::shared_ptr<Segment> segment, std::size_t offset, std::size_t nbytes)
      : segment_(std::move(segment)) {
    data_ = segment_->data() + offset;
    nbytes_ = nbytes;
  }

 private:
  std::shared_ptr<Segment> segment_;
};

// The choice of the segment depends on the sizes of this and of earlier allocations only. A rank
// that reused what it has freed would get another place than a rank that frees later.
collectives::BufferPtr RegisteredArena::allocate(std::size_t nbytes, const char* what) {
  const NcclApi& api = communicator_->api();
  if (api.mem_alloc == nullptr || api.mem_free == nullptr || api.comm_register == nullptr) {
    return nullptr;
  }
  const std::size_t taken = rounded(nbytes, kPieceAlignment);
  if (taken > kLargestSmall) {
    return std::make_shared<Piece>(make_segment(nbytes, what), 0, nbytes);
  }
  if (open_ == nullptr || used_ + taken > kGranularity) {
    open_ = make_segment(kGranularity, what);
    used_ = 0;
  }
  return std::make_shared<Piece>(open_, std::exchange(used_, used_ + taken), nbytes);
}

bool RegisteredArena::contains(const void* address) const {
  return std::ranges::any_of(segments_, [address](const auto& each) {
    const auto segment = each.lock();
    return segment != nullptr && segment->contains(address);
  });
}

std::shared_ptr<RegisteredArena::Segment> RegisteredArena::make_segment(std::size_t nbytes,
                                                                        const char* what) {
  const NcclApi& api = communicator_->api();
  const std::size_t size = rounded(nbytes, kGranularity);
  // ncclMemAlloc allocates on the thread's current device.
  check(cudaSetDevice(device_->index()), "cudaSetDevice", device_->index());
  void* data = nullptr;
  if (api.mem_alloc(&data, size) != ncclSuccess) {
    // The device's cache may hold the memory that NCCL asks the driver for.
    device_->trim();
    if (api.mem_alloc(&data, size) != ncclSuccess) {
      throw device_->out_of_memory(size, what);
    }
  }
  auto segment =
      std::make_shared<Segment>(communicator_, device_, static_cast<std::byte*>(data), size, what);
  std::erase_if(segments_, [](const auto& each) { return each.expired(); });
  segments_.push_back(segment);
  return segment;
}

}  // namespace acc::cuda
