// SPDX-License-Identifier: Apache-2.0
#include "device/caching_allocator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

using acc::device::CachingAllocator;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A driver with a limited amount of memory, at addresses that are never accessed.
class FakeDriver {
 public:
  explicit FakeDriver(std::size_t capacity) : free_(capacity) {}

  acc::device::RawMemory memory() {
    return {.allocate = [this](std::size_t nbytes) { return allocate(nbytes); },
            .release = [this](std::byte* data) { release(data); }};
  }
  [[nodiscard]] std::size_t segments() const { return segments_.size(); }
  [[nodiscard]] std::size_t held() const {
    std::size_t sum = 0;
    for (const auto& [data, nbytes] : segments_) {
      sum += nbytes;
    }
    return sum;
  }
  int allocations = 0;

 private:
  // Segments with adjacent addresses: the allocator must not merge blocks of two segments.
  std::byte* allocate(std::size_t nbytes) {
    if (nbytes > free_) {
      return nullptr;
    }
    free_ -= nbytes;
    auto* const data = reinterpret_cast<std::byte*>(next_);
    next_ += nbytes;
    segments_[data] = nbytes;
    ++allocations;
    return data;
  }
  void release(std::byte* data) {
    REQUIRE(segments_.contains(data));
    free_ += segments_[data];
    segments_.erase(data);
  }

  std::size_t free_;
  std::uintptr_t next_ = kMiB;
  std::map<std::byte*, std::size_t> segments_;
};

}  // namespace

TEST_CASE("a freed block is reused without a call to the driver") {
  for (const std::size_t nbytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{700}, kMiB, 5 * kMiB}) {
    CAPTURE(nbytes);
    FakeDriver driver(64 * kMiB);
    CachingAllocator allocator(driver.memory());
    std::byte* const first = allocator.allocate(nbytes);
    REQUIRE(first != nullptr);
    CHECK(allocator.in_use() >= std::max<std::size_t>(nbytes, 1));
    allocator.release(first);
    CHECK(allocator.in_use() == 0);
    CHECK(allocator.allocate(nbytes) == first);
    CHECK(driver.allocations == 1);
    allocator.release(first);
  }
}

TEST_CASE("small blocks share a segment and large ones are whole multiples of 2 MiB") {
  FakeDriver driver(64 * kMiB);
  CachingAllocator allocator(driver.memory());
  std::vector<std::byte*> small;
  for (int i = 0; i < 16; ++i) {
    small.push_back(allocator.allocate(100'000));
  }
  CHECK(driver.allocations == 1);
  CHECK(allocator.reserved() == 2 * kMiB);
  std::byte* const large = allocator.allocate(5 * kMiB);
  CHECK(allocator.reserved() == 8 * kMiB);
  CHECK(driver.allocations == 2);
  allocator.release(large);
  std::ranges::for_each(small, [&](std::byte* data) { allocator.release(data); });
}

TEST_CASE("the smallest block that fits is split, and free neighbours are merged again") {
  FakeDriver driver(64 * kMiB);
  CachingAllocator allocator(driver.memory());
  std::byte* const wide = allocator.allocate(20 * kMiB);
  std::byte* const wall = allocator.allocate(2 * kMiB);
  std::byte* const narrow = allocator.allocate(8 * kMiB);
  allocator.release(wide);
  allocator.release(narrow);
  CHECK(allocator.allocate(6 * kMiB) == narrow);
  std::byte* const left = allocator.allocate(10 * kMiB);
  std::byte* const right = allocator.allocate(10 * kMiB);
  CHECK(left == wide);
  CHECK(right == wide + 10 * kMiB);
  allocator.release(left);
  allocator.release(right);
  CHECK(allocator.allocate(20 * kMiB) == wide);
  CHECK(driver.allocations == 3);
  std::ranges::for_each(std::vector{wide, wall, narrow},
                        [&](auto* data) { allocator.release(data); });
  CHECK(allocator.in_use() == 0);
}

TEST_CASE("when the driver is out of memory, unused segments are returned to it") {
  FakeDriver driver(16 * kMiB);
  CachingAllocator allocator(driver.memory());
  std::byte* const kept = allocator.allocate(4 * kMiB);
  std::byte* const dropped = allocator.allocate(8 * kMiB);
  allocator.release(dropped);
  std::byte* const wide = allocator.allocate(12 * kMiB);
  REQUIRE(wide != nullptr);
  CHECK(driver.held() == 16 * kMiB);
  CHECK(allocator.reserved() == 16 * kMiB);
  CHECK(allocator.allocate(2 * kMiB) == nullptr);
  allocator.release(wide);
  CHECK(allocator.release_cached() == 12 * kMiB);
  CHECK(allocator.release_cached() == 0);
  CHECK(driver.held() == 4 * kMiB);
  allocator.release(kept);
}

TEST_CASE("the allocator's destructor returns all memory to the driver") {
  FakeDriver driver(16 * kMiB);
  {
    CachingAllocator allocator(driver.memory());
    allocator.release(allocator.allocate(100));
    allocator.release(allocator.allocate(3 * kMiB));
    CHECK(driver.segments() == 2);
  }
  CHECK(driver.segments() == 0);
}

// Compared with a simple model of the allocated blocks: blocks never overlap, the sums agree, and
// only whole segments remain when all blocks are free.
TEST_CASE("random allocations never overlap and leave nothing allocated") {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    CAPTURE(seed);
    FakeDriver driver(256 * kMiB);
    CachingAllocator allocator(driver.memory());
    std::mt19937 random(seed);
    std::map<std::byte*, std::size_t> model;
    int refused = 0;
    for (int step = 0; step < 4000; ++step) {
      if (model.empty() || random() % 5 < 3) {
        const bool small = random() % 2 == 0;
        const std::size_t nbytes = random() % (small ? 200'000 : 24 * kMiB);
        std::byte* const data = allocator.allocate(nbytes);
        if (data == nullptr) {
          ++refused;
          allocator.release_cached();
          continue;
        }
        REQUIRE(reinterpret_cast<std::uintptr_t>(data) % CachingAllocator::kAlignment == 0);
        const auto [at, is_new] = model.emplace(data, std::max<std::size_t>(nbytes, 1));
        REQUIRE(is_new);
        REQUIRE((at == model.begin() || std::prev(at)->first + std::prev(at)->second <= data));
        REQUIRE((std::next(at) == model.end() || data + nbytes <= std::next(at)->first));
      } else {
        const auto chosen = std::next(model.begin(), static_cast<long>(random() % model.size()));
        allocator.release(chosen->first);
        model.erase(chosen);
      }
      std::size_t handed_out = 0;
      for (const auto& [data, nbytes] : model) {
        handed_out += nbytes;
      }
      REQUIRE(allocator.in_use() >= handed_out);
      REQUIRE(allocator.reserved() == driver.held());
      REQUIRE(allocator.in_use() <= allocator.reserved());
    }
    CHECK(refused > 0);
    for (const auto& [data, nbytes] : model) {
      allocator.release(data);
    }
    CHECK(allocator.in_use() == 0);
    const std::size_t reserved = allocator.reserved();
    CHECK(allocator.release_cached() == reserved);
    CHECK(driver.segments() == 0);
  }
}
