// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/parallel.hpp"

#include "acc/base/machine.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

// Threads take the next index from a shared counter. After a failure the counter is set to the end,
// so that the others stop after their current index.
namespace acc::checkpoint::conversion {

void for_each_parallel(std::size_t count, int threads,
                       const std::function<void(std::size_t, std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&](std::size_t worker) {
    try {
      for (std::size_t index = next++; index < count; index = next++) {
        body(index, worker);
      }
    } catch (...) {
      next = count;
      const std::scoped_lock lock(failing);
      failure = failure ? failure : std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(threads, 1)));
    for (std::size_t worker = 1; worker < wanted; ++worker) {
      others.emplace_back(work, worker);
    }
    work(0);
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

int default_threads() {
  return std::clamp(usable_cores(), 1, 16);
}

}  // namespace acc::checkpoint::conversion
