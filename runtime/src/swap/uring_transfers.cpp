// SPDX-License-Identifier: Apache-2.0
#include "swap/transfers.hpp"

#ifdef ACC_HAVE_LIBURING

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <liburing.h>

#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace acc::swap {
namespace {

/// One ring with at most queue_depth requests. Blocks beyond that wait in a queue, from which
/// `progress` takes them.
class UringTransfers final : public Transfers {
 public:
  UringTransfers(const settings::NvmeSettings& settings, const io_uring& ring, bool registered)
      : Transfers(settings),
        ring_(ring),
        registered_(registered),
        requests_(static_cast<std::size_t>(settings.queue_depth)) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      free_.push_back(i);
    }
  }
  ~UringTransfers() override { io_uring_queue_exit(&ring_); }

  void progress() override {
    reap();
    fill();
  }
  bool done(const Transfer& transfer) override {
    progress();
    return transfer.open_blocks == 0;
  }
  void wait(const Transfer& transfer) override {
    progress();
    while (transfer.open_blocks != 0) {
      // Also submits what an interrupted or refused call has left behind.
      const int error = io_uring_submit_and_wait(&ring_, 1);
      if (error < 0 && error != -EINTR && error != -EAGAIN && error != -EBUSY) {
        throw Error(Errc::device, fmt::format("offload to nvme: io_uring_enter failed: {}",
                                              std::strerror(-error)));
      }
      progress();
    }
  }
  const char* name() const noexcept override { return "io_uring"; }

 private:
  void issue(std::span<const Block> blocks) override {
    for (const Block& each : blocks) {
      ++each.transfer->open_blocks;
      queue_.push_back(each);
    }
    progress();
  }

  /// Takes completed requests. A request that was cut short goes back to the queue.
  void reap() {
    io_uring_cqe* completed = nullptr;
    while (io_uring_peek_cqe(&ring_, &completed) == 0) {
      const auto index = static_cast<std::size_t>(io_uring_cqe_get_data64(completed));
      const std::int64_t result = completed->res;
      io_uring_cqe_seen(&ring_, completed);
      free_.push_back(index);
      Block block = requests_[index];
      Transfer& transfer = *block.transfer;
      std::string problem;
      if (!end_request(block, result, problem)) {
        queue_.push_front(block);
        continue;
      }
      if (transfer.problem.empty()) {
        transfer.problem = std::move(problem);
      }
      --transfer.open_blocks;
    }
  }

  /// Without overlap_events a batch of requests begins when the last one has ended.
  void fill() {
    if (!settings_.overlap_events && free_.size() != requests_.size()) {
      return;
    }
    bool prepared = false;
    while (!queue_.empty() && !free_.empty()) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) {
        break;
      }
      const std::size_t index = free_.back();
      free_.pop_back();
      requests_[index] = queue_.front();
      queue_.pop_front();
      prepare(entry, requests_[index]);
      io_uring_sqe_set_data64(entry, index);
      prepared = true;
      if (settings_.single_submit) {
        io_uring_submit(&ring_);
      }
    }
    // An interrupted call leaves entries behind, which the next one submits.
    if (prepared || io_uring_sq_ready(&ring_) != 0) {
      io_uring_submit(&ring_);
    }
  }

  void prepare(io_uring_sqe* entry, const Block& block) const {
    const auto nbytes = static_cast<unsigned>(block.nbytes);
    if (registered_ && block.buffer >= 0) {
      (block.writes ? io_uring_prep_write_fixed : prep_read_fixed)(
          entry, block.file, block.data, nbytes, block.offset, block.buffer);
    } else if (block.writes) {
      io_uring_prep_write(entry, block.file, block.data, nbytes, block.offset);
    } else {
      io_uring_prep_read(entry, block.file, block.data, nbytes, block.offset);
    }
  }
  /// io_uring_prep_read_fixed with the type of the function that writes.
  static void prep_read_fixed(io_uring_sqe* entry, int file, const void* data, unsigned nbytes,
                              __u64 offset, int buffer) {
    io_uring_prep_read_fixed(entry, file, const_cast<void*>(data), nbytes, offset, buffer);
  }

  io_uring ring_;
  bool registered_;
  std::vector<Block> requests_;    ///< by number of the request
  std::vector<std::size_t> free_;  ///< numbers of requests that are not under way
  std::deque<Block> queue_;
};

}  // namespace

std::unique_ptr<Transfers> make_uring_transfers(const settings::NvmeSettings& settings,
                                                std::span<const std::span<std::byte>> buffers,
                                                std::string& reason) {
  io_uring ring{};
  const int error = io_uring_queue_init(static_cast<unsigned>(settings.queue_depth), &ring, 0);
  if (error < 0) {
    reason = std::strerror(-error);
    return nullptr;
  }
  std::vector<iovec> parts;
  for (const std::span<std::byte> each : buffers) {
    parts.push_back({each.data(), each.size()});
  }
  // Registered buffers count against RLIMIT_MEMLOCK. Without it, each request pins its own pages.
  const bool registered =
      io_uring_register_buffers(&ring, parts.data(), static_cast<unsigned>(parts.size())) == 0;
  return std::make_unique<UringTransfers>(settings, ring, registered);
}

}  // namespace acc::swap

#else

namespace acc::swap {

std::unique_ptr<Transfers> make_uring_transfers(const settings::NvmeSettings& /*settings*/,
                                                std::span<const std::span<std::byte>> /*buffers*/,
                                                std::string& reason) {
  reason = "this build has no liburing";
  return nullptr;
}

}  // namespace acc::swap

#endif
