// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/memory_table.hpp"

#include "standin/cuda/address_check.hpp"
#include "standin/cuda/devices.hpp"
#include "standin/cuda/standin.hpp"

#include <cstdlib>
#include <cstring>
#include <sstream>

namespace standin {
namespace {

constexpr std::size_t kAlignment = 512;
constexpr std::size_t kRedzoneBytes = 512;  // behind each allocation
constexpr std::size_t kQuarantineBytes = std::size_t{64} << 20;

std::size_t with_redzone(std::size_t nbytes) {
  return (nbytes + kAlignment - 1) / kAlignment * kAlignment + kRedzoneBytes;
}

/// The first byte in [begin, end) that is not poison, or end.
const unsigned char* first_changed(const unsigned char* begin, const unsigned char* end) {
  while (begin != end && *begin == kPoison) {
    ++begin;
  }
  return begin;
}

unsigned char* bytes_at(std::uintptr_t address) {
  return reinterpret_cast<unsigned char*>(address);
}

std::string describe(std::uintptr_t begin, std::size_t nbytes, int device, long serial) {
  std::ostringstream text;
  text << "allocation " << serial << " (" << nbytes << " bytes at "
       << static_cast<const void*>(bytes_at(begin)) << " of device " << device << ")";
  return text.str();
}

/// The entry of `map` whose [first, first + nbytes) overlaps [begin, end), or map.end().
template <typename Map>
auto find_overlap(const Map& map, std::uintptr_t begin, std::uintptr_t end) {
  auto after = map.lower_bound(end);
  if (after == map.begin()) {
    return map.end();
  }
  const auto candidate = std::prev(after);
  return candidate->first + candidate->second.nbytes > begin ? candidate : map.end();
}

}  // namespace

MemoryTable& MemoryTable::instance() {
  static MemoryTable* const table = new MemoryTable;  // outlives the threads that run streams
  return *table;
}

cudaError_t MemoryTable::allocate(int device, std::size_t nbytes, void** address) {
  *address = nullptr;
  if (nbytes == 0) {
    return cudaSuccess;
  }
  const std::lock_guard lock(mutex_);
  if (nbytes > settings().memory - used_[device]) {
    return cudaErrorMemoryAllocation;
  }
  void* memory = std::aligned_alloc(kAlignment, with_redzone(nbytes));
  if (memory == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(memory, kPoison, with_redzone(nbytes));
  forbid(static_cast<std::byte*>(memory) + nbytes, with_redzone(nbytes) - nbytes);
  live_[reinterpret_cast<Address>(memory)] = {nbytes, device, ++serial_};
  used_[device] += nbytes;
  *address = memory;
  return cudaSuccess;
}

cudaError_t MemoryTable::release(void* address) {
  if (address == nullptr) {
    return cudaSuccess;
  }
  const auto begin = reinterpret_cast<Address>(address);
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(begin);
  if (found == live_.end()) {
    check_freed(begin, 1, "cudaFree");
    return cudaErrorInvalidValue;
  }
  const Allocation allocation = found->second;
  const unsigned char* end = bytes_at(begin) + with_redzone(allocation.nbytes);
  const unsigned char* changed = first_changed(bytes_at(begin) + allocation.nbytes, end);
  if (changed != end) {
    die("something wrote past " +
        describe(begin, allocation.nbytes, allocation.device, allocation.serial) + ", " +
        std::to_string(changed - bytes_at(begin)) + " bytes from its start");
  }
  live_.erase(found);
  used_[allocation.device] -= allocation.nbytes;
  quarantine(begin, allocation);
  return cudaSuccess;
}

void MemoryTable::quarantine(Address begin, const Allocation& allocation) {
  std::memset(bytes_at(begin), kPoison, allocation.nbytes);
  forbid(bytes_at(begin), allocation.nbytes);
  freed_[begin] = allocation;
  freed_order_.push_back(begin);
  freed_bytes_ += allocation.nbytes;
  while (freed_bytes_ > kQuarantineBytes) {
    give_back_oldest();
  }
}

void MemoryTable::give_back_oldest() {
  const auto found = freed_.find(freed_order_.front());
  const auto& [begin, allocation] = *found;
  const unsigned char* end = bytes_at(begin) + allocation.nbytes;
  if (first_changed(bytes_at(begin), end) != end) {
    die("something wrote to " +
        describe(begin, allocation.nbytes, allocation.device, allocation.serial) +
        " after it was freed");
  }
  freed_bytes_ -= allocation.nbytes;
  std::free(bytes_at(begin));
  freed_.erase(found);
  freed_order_.pop_front();
}

std::size_t MemoryTable::free_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(device);
  return settings().memory - (used == used_.end() ? 0 : used->second);
}

cudaError_t MemoryTable::allocate_host(std::size_t nbytes, void** address) {
  *address = nullptr;
  if (nbytes == 0) {
    return cudaSuccess;
  }
  constexpr std::size_t kPage = 4096;
  void* memory = std::aligned_alloc(kPage, (nbytes + kPage - 1) / kPage * kPage);
  if (memory == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(memory, kPoison, nbytes);
  const std::lock_guard lock(mutex_);
  pinned_[reinterpret_cast<Address>(memory)] = {nbytes, /*ours=*/true};
  *address = memory;
  return cudaSuccess;
}

cudaError_t MemoryTable::release_host(void* address) {
  if (address == nullptr) {
    return cudaSuccess;
  }
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(reinterpret_cast<Address>(address));
  if (found == pinned_.end() || !found->second.ours) {
    return cudaErrorInvalidValue;
  }
  std::memset(address, kPoison, found->second.nbytes);
  pinned_.erase(found);
  std::free(address);
  return cudaSuccess;
}

cudaError_t MemoryTable::pin(void* address, std::size_t nbytes) {
  if (address == nullptr || nbytes == 0) {
    return cudaErrorInvalidValue;
  }
  const auto begin = reinterpret_cast<Address>(address);
  const std::lock_guard lock(mutex_);
  if (find_overlap(pinned_, begin, begin + nbytes) != pinned_.end()) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  pinned_[begin] = {nbytes, /*ours=*/false};
  return cudaSuccess;
}

cudaError_t MemoryTable::unpin(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(reinterpret_cast<Address>(address));
  if (found == pinned_.end() || found->second.ours) {
    return cudaErrorHostMemoryNotRegistered;
  }
  pinned_.erase(found);
  return cudaSuccess;
}

bool MemoryTable::is_pinned(const void* address) const {
  const auto begin = reinterpret_cast<Address>(address);
  const std::lock_guard lock(mutex_);
  return find_overlap(pinned_, begin, begin + 1) != pinned_.end();
}

int MemoryTable::device_of(const void* address) const {
  const auto begin = reinterpret_cast<Address>(address);
  const std::lock_guard lock(mutex_);
  const auto found = find_overlap(live_, begin, begin + 1);
  return found == live_.end() ? -1 : found->second.device;
}

void MemoryTable::check(const void* address, std::size_t nbytes, const char* what) const {
  if (nbytes == 0) {
    return;
  }
  const auto begin = reinterpret_cast<Address>(address);
  const std::lock_guard lock(mutex_);
  check_live(begin, nbytes, what);
  check_freed(begin, nbytes, what);
}

void MemoryTable::check_live(Address begin, std::size_t nbytes, const char* what) const {
  const auto found = find_overlap(live_, begin, begin + nbytes);
  if (found == live_.end()) {
    return;
  }
  const auto& [first, allocation] = *found;
  if (begin < first || begin + nbytes > first + allocation.nbytes) {
    die(std::string(what) + ": the " + std::to_string(nbytes) + " bytes from offset " +
        std::to_string(static_cast<std::ptrdiff_t>(begin - first)) + " leave " +
        describe(first, allocation.nbytes, allocation.device, allocation.serial));
  }
}

void MemoryTable::check_freed(Address begin, std::size_t nbytes, const char* what) const {
  const auto found = find_overlap(freed_, begin, begin + nbytes);
  if (found != freed_.end()) {
    const auto& [first, allocation] = *found;
    die(std::string(what) + ": " + std::to_string(nbytes) + " bytes from offset " +
        std::to_string(static_cast<std::ptrdiff_t>(begin - first)) + " of " +
        describe(first, allocation.nbytes, allocation.device, allocation.serial) +
        ", which has been freed");
  }
}

void check_range(const void* address, std::size_t nbytes, const char* what) {
  MemoryTable::instance().check(address, nbytes, what);
}

}  // namespace standin
