// SPDX-License-Identifier: Apache-2.0
#include "swap/transfers.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace acc::swap {
namespace {

/// Threads that take blocks from one queue. At least two, so that a write does not hold up reads.
class ThreadTransfers final : public Transfers {
 public:
  explicit ThreadTransfers(const settings::NvmeSettings& settings) : Transfers(settings) {
    for (int i = 0; i < std::max(2, settings.intra_op_parallelism); ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  void progress() override {}
  bool done(const Transfer& transfer) override {
    const std::lock_guard lock(mutex_);
    return transfer.open_blocks == 0;
  }
  void wait(const Transfer& transfer) override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return transfer.open_blocks == 0; });
  }
  const char* name() const noexcept override { return "threads"; }

 private:
  void issue(std::span<const Block> blocks) override {
    const std::lock_guard lock(mutex_);
    for (const Block& each : blocks) {
      ++each.transfer->open_blocks;
      queue_.push_back(each);
    }
    begun_.notify_all();
  }

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (begun_.wait(lock, stop, [this] { return !queue_.empty(); })) {
      Block block = queue_.front();
      queue_.pop_front();
      lock.unlock();
      std::string problem;
      while (!end_request(block, request(block), problem)) {
      }
      lock.lock();
      Transfer& transfer = *block.transfer;
      if (transfer.problem.empty()) {
        transfer.problem = std::move(problem);
      }
      if (--transfer.open_blocks == 0) {
        ended_.notify_all();
      }
    }
  }

  static std::int64_t request(const Block& block) {
    const auto offset = static_cast<off_t>(block.offset);
    const ssize_t result = block.writes ? ::pwrite(block.file, block.data, block.nbytes, offset)
                                        : ::pread(block.file, block.data, block.nbytes, offset);
    return result < 0 ? -errno : result;
  }

  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::condition_variable_any ended_;
  std::deque<Block> queue_;  ///< guarded by mutex_, as are the transfers of its blocks
  std::vector<std::jthread> threads_;
};

}  // namespace

std::unique_ptr<Transfers> make_thread_transfers(const settings::NvmeSettings& settings) {
  return std::make_unique<ThreadTransfers>(settings);
}

}  // namespace acc::swap
