// SPDX-License-Identifier: Apache-2.0
#include "swap/swap_device.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

namespace acc::swap {
namespace {

/// Buffers are multiples of this. It holds a page of elements of every array of a step, and whole
/// tiles of the CPU's sums, so that a sum of squares by buffers has the order of that in memory.
constexpr std::size_t kSlotStep = std::size_t{1} << 18U;
/// Largest buffer that io_uring registers.
constexpr std::size_t kMaxSlot = std::size_t{1} << 30;
/// Buffers that a pipeline needs: one is read, one computed, one written.
constexpr int kMinSlots = 3;
/// Tiles of an update begin at multiples of this number of elements, which are whole pages for
/// every dtype.
constexpr auto kTileStep = static_cast<std::int64_t>(kPage);
/// Elements that are updated between two looks at the queue of the disk.
constexpr std::int64_t kProgressNumel = 1 << 19;

/// Bytes between the beginning of a page and an address.
std::size_t into_page(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % kPage;
}

}  // namespace

/// Owns an extent. Its addresses are reserved and inaccessible, so that a mistaken use ends the
/// process instead of giving wrong numbers.
class SwapDevice::FileMemory final : public device::Memory {
 public:
  FileMemory(std::shared_ptr<SwapDevice> device, SwapFile& file, std::size_t nbytes)
      : device_(std::move(device)), reserved_(round_up(std::max<std::size_t>(nbytes, 1), kPage)) {
    const std::uint64_t offset = file.allocate(reserved_);
    void* const place =
        ::mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) {
      file.free(offset, reserved_);
      throw device_->out_of_memory(reserved_, "addresses of a file");
    }
    data_ = static_cast<std::byte*>(place);
    nbytes_ = nbytes;
    device_->extents_[data_ + reserved_] = {data_, data_ + reserved_, &file, offset, reserved_};
  }
  ~FileMemory() override {
    device_->release(device_->extent_of(data_));
    ::munmap(data_, reserved_);
  }

 private:
  std::shared_ptr<SwapDevice> device_;
  std::size_t reserved_;
};

SwapDevice::SwapDevice(device::DevicePtr host, const settings::NvmeSettings& settings)
    : host_(std::move(host)),
      slot_nbytes_(
          std::min(round_up(round_up(static_cast<std::size_t>(settings.block_size), kPage) *
                                static_cast<std::size_t>(settings.queue_depth),
                            kSlotStep),
                   kMaxSlot)),
      slots_(static_cast<std::size_t>(std::max(settings.buffer_count, kMinSlots))) {
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].number = static_cast<int>(i);
    slots_[i].memory = host_->allocate(slot_nbytes_, "buffers of offload to nvme");
    buffers.emplace_back(slots_[i].memory->data(), slot_nbytes_);
  }
  transfers_ = make_transfers(settings, buffers);
}

SwapDevice::~SwapDevice() {
  end_transfers();
}

void SwapDevice::end_transfers() noexcept {
  try {
    for (const Slot& slot : slots_) {
      transfers_->wait(slot.transfer);
    }
  } catch (const Error&) {  // the system has refused to wait
  }
}

device::MemoryPtr SwapDevice::allocate_in_file(std::size_t nbytes, const std::string& folder,
                                               const std::string& setting) {
  auto found = std::ranges::find(files_, folder, [](const auto& each) { return each->folder(); });
  if (found == files_.end()) {
    found = files_.insert(files_.end(), std::make_unique<SwapFile>(folder, setting));
  }
  return std::make_shared<FileMemory>(shared_from_this(), **found, nbytes);
}

std::int64_t SwapDevice::file_nbytes() const noexcept {
  std::uint64_t nbytes = 0;
  for (const auto& each : files_) {
    nbytes += each->nbytes();
  }
  return static_cast<std::int64_t>(nbytes);
}

std::int64_t SwapDevice::buffer_nbytes() const noexcept {
  return static_cast<std::int64_t>(slot_nbytes_ * slots_.size());
}

const SwapDevice::Extent* SwapDevice::find(const void* memory) const {
  const auto* const byte = static_cast<const std::byte*>(memory);
  const auto found = extents_.upper_bound(byte);
  return found != extents_.end() && found->second.begin <= byte ? &found->second : nullptr;
}

const SwapDevice::Extent& SwapDevice::extent_of(const void* memory) const {
  const Extent* const found = find(memory);
  if (found == nullptr) {
    throw Error(Errc::internal, "offload to nvme: an address that is in no file");
  }
  return *found;
}

void SwapDevice::release(const Extent& extent) noexcept {
  end_transfers();
  extent.file->free(extent.offset, extent.nbytes);
  extents_.erase(extent.end);
}

// --- buffers and transfers ---

void SwapDevice::check() const {
  if (!failure_.empty()) {
    throw Error(Errc::device, failure_);
  }
}

SwapDevice::Slot* SwapDevice::take(bool may_wait) {
  check();
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.state == Slot::State::writing && transfers_->done(slot.transfer)) {
      finish(slot);
    }
    if (slot.state == Slot::State::free) {
      slot.state = Slot::State::used;
      slot.pages.clear();
      return &slot;
    }
    if (slot.state == Slot::State::writing && (oldest == nullptr || slot.turn < oldest->turn)) {
      oldest = &slot;
    }
  }
  if (!may_wait) {
    return nullptr;
  }
  if (oldest == nullptr) {
    throw Error(Errc::internal, "offload to nvme: all buffers are in use");
  }
  finish(*oldest);
  oldest->state = Slot::State::used;
  oldest->pages.clear();
  return oldest;
}

void SwapDevice::start(Slot& slot, bool writes) {
  slot.transfer.problem.clear();
  for (const Pages& each : slot.pages) {
    transfers_->start(slot.transfer, writes, each.file->descriptor(), each.offset, each.data,
                      each.nbytes, slot.number);
    (writes ? written_nbytes_ : read_nbytes_) += each.nbytes;
  }
}

void SwapDevice::await_writes(const std::vector<Pages>& pages) {
  for (Slot& slot : slots_) {
    const bool meets =
        slot.state == Slot::State::writing && std::ranges::any_of(slot.pages, [&](const Pages& a) {
          return std::ranges::any_of(pages, [&](const Pages& b) {
            return a.file == b.file && a.offset < b.offset + b.nbytes &&
                   b.offset < a.offset + a.nbytes;
          });
        });
    if (meets) {
      finish(slot);
    }
  }
}

void SwapDevice::read(Slot& slot) {
  await_writes(slot.pages);
  start(slot, false);
}

void SwapDevice::write(Slot& slot) {
  await_writes(slot.pages);
  slot.state = Slot::State::writing;
  slot.turn = ++turns_;
  start(slot, true);
}

void SwapDevice::finish(Slot& slot) {
  transfers_->wait(slot.transfer);
  if (slot.state == Slot::State::writing) {
    slot.state = Slot::State::free;
  }
  check_ended(slot.transfer, *slot.pages.front().file);
}

void SwapDevice::check_ended(const Transfer& transfer, const SwapFile& file) {
  if (!transfer.problem.empty() && failure_.empty()) {
    failure_ =
        fmt::format("offload to nvme: the file in {}: {}", file.describe(), transfer.problem);
  }
  check();
}

void SwapDevice::synchronize() {
  for (Slot& slot : slots_) {
    if (slot.state == Slot::State::writing) {
      finish(slot);
    }
  }
}

SwapDevice::Pages SwapDevice::pages_of(const void* memory, std::size_t nbytes, const Slot& slot,
                                       std::size_t at) const {
  const Extent& extent = extent_of(memory);
  const auto first = static_cast<std::size_t>(static_cast<const std::byte*>(memory) - extent.begin);
  const std::size_t begin = first / kPage * kPage;
  return {extent.file, extent.offset + begin, round_up(first + nbytes, kPage) - begin,
          slot.memory->data() + at};
}

// --- reads beside the computation ---

SwapDevice::ReadingPtr SwapDevice::start_reading(const void* from, std::byte* to,
                                                 std::size_t nbytes) {
  if (into_page(to) != 0 || into_page(from) != 0) {
    copy(to, from, nbytes, compute());
    return nullptr;
  }
  check();
  const Extent& extent = extent_of(from);
  const auto first = static_cast<std::size_t>(static_cast<const std::byte*>(from) - extent.begin);
  const Pages pages{extent.file, extent.offset + first, round_up(nbytes, kPage), to};
  await_writes({pages});
  return std::make_unique<Reading>(shared_from_this(), pages);
}

SwapDevice::Reading::Reading(std::shared_ptr<SwapDevice> device, const Pages& pages)
    : device_(std::move(device)), pages_(pages) {
  device_->transfers_->start(transfer_, false, pages.file->descriptor(), pages.offset, pages.data,
                             pages.nbytes, -1);
  device_->read_nbytes_ += pages.nbytes;
}

SwapDevice::Reading::~Reading() {
  try {
    device_->transfers_->wait(transfer_);
  } catch (const Error&) {  // the system has refused to wait
  }
}

void SwapDevice::Reading::wait() {
  device_->transfers_->wait(transfer_);
  device_->check_ended(transfer_, *pages_.file);
}

// --- copies ---

std::size_t SwapDevice::step_of(const void* memory, std::size_t at, std::size_t nbytes) const {
  const std::size_t skipped = into_page(static_cast<const std::byte*>(memory) + at);
  return std::min(slot_nbytes_ - skipped, nbytes - at);
}

void SwapDevice::read_bytes(const void* from, std::size_t nbytes, const Visit& visit) {
  struct Reads {
    SwapDevice& device;
    std::deque<Slot*> slots;
    ~Reads() {  // `visit` may have thrown
      if (!slots.empty()) {
        device.end_transfers();
      }
      for (Slot* const each : slots) {
        each->state = Slot::State::free;
      }
    }
  } reads{*this, {}};
  const auto* const bytes = static_cast<const std::byte*>(from);
  std::size_t ahead = 0;
  for (std::size_t at = 0; at < nbytes;) {
    // One buffer stays free for `visit`, which may write to a file.
    while (ahead < nbytes && reads.slots.size() + 2 < slots_.size()) {
      Slot* const slot = take(reads.slots.empty());
      if (slot == nullptr) {
        break;
      }
      reads.slots.push_back(slot);
      const std::size_t step = step_of(from, ahead, nbytes);
      slot->pages.push_back(pages_of(bytes + ahead, step, *slot, 0));
      read(*slot);
      ahead += step;
    }
    Slot& slot = *reads.slots.front();
    finish(slot);
    const std::size_t step = step_of(from, at, nbytes);
    visit(at, {slot.memory->data() + into_page(bytes + at), step});
    slot.state = Slot::State::free;
    reads.slots.pop_front();
    at += step;
  }
}

void SwapDevice::write_bytes(void* to, std::size_t nbytes, const Fill& fill) {
  auto* const bytes = static_cast<std::byte*>(to);
  for (std::size_t at = 0; at < nbytes;) {
    Slot& slot = *take(true);
    const std::size_t step = step_of(to, at, nbytes);
    slot.pages.push_back(pages_of(bytes + at, step, slot, 0));
    try {
      if (slot.pages.front().nbytes != step) {  // other bytes of the first or last page stay
        read(slot);
        finish(slot);
      }
      fill(at, {slot.memory->data() + into_page(bytes + at), step});
    } catch (...) {
      slot.state = Slot::State::free;
      throw;
    }
    write(slot);
    at += step;
  }
}

void SwapDevice::copy(void* to, const void* from, std::size_t nbytes, device::Stream& stream) {
  if (find(to) != nullptr && to != from) {
    write_bytes(to, nbytes, [&](std::size_t at, std::span<std::byte> part) {
      copy(part.data(), static_cast<const std::byte*>(from) + at, part.size(), stream);
    });
  } else if (find(from) != nullptr && to != from) {
    read_bytes(from, nbytes, [&](std::size_t at, std::span<const std::byte> part) {
      std::memcpy(static_cast<std::byte*>(to) + at, part.data(), part.size());
    });
  } else {
    host_->copy(to, from, nbytes, stream);
  }
}

void SwapDevice::zero(void* to, std::size_t nbytes, device::Stream& stream) {
  if (find(to) == nullptr) {
    host_->zero(to, nbytes, stream);
    return;
  }
  write_bytes(to, nbytes, [](std::size_t, std::span<std::byte> part) {
    std::ranges::fill(part, std::byte{0});
  });
}

void SwapDevice::cast(const void* from, DType from_dtype, void* to, DType to_dtype,
                      std::size_t numel, device::Stream& stream) {
  const std::size_t from_size = nbytes_of(from_dtype);
  const std::size_t to_size = nbytes_of(to_dtype);
  if (from_dtype == to_dtype) {
    copy(to, from, numel * to_size, stream);
  } else if (find(to) != nullptr) {
    write_bytes(to, numel * to_size, [&](std::size_t at, std::span<std::byte> part) {
      cast(static_cast<const std::byte*>(from) + at / to_size * from_size, from_dtype, part.data(),
           to_dtype, part.size() / to_size, stream);
    });
  } else if (find(from) != nullptr) {
    read_bytes(from, numel * from_size, [&](std::size_t at, std::span<const std::byte> part) {
      host_->cast(part.data(), from_dtype, static_cast<std::byte*>(to) + at / from_size * to_size,
                  to_dtype, part.size() / from_size, stream);
    });
  } else {
    host_->cast(from, from_dtype, to, to_dtype, numel, stream);
  }
}

// --- gradients ---

void SwapDevice::add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel,
                            float scale, bool accumulate, device::Stream& stream) {
  if (find(to) == nullptr) {
    host_->add_scaled(from, from_dtype, to, numel, scale, accumulate, stream);
    return;
  }
  write_bytes(to, numel * sizeof(float), [&](std::size_t at, std::span<std::byte> part) {
    if (accumulate) {
      copy(part.data(), reinterpret_cast<std::byte*>(to) + at, part.size(), stream);
    }
    host_->add_scaled(
        static_cast<const std::byte*>(from) + at / sizeof(float) * nbytes_of(from_dtype),
        from_dtype, reinterpret_cast<float*>(part.data()), part.size() / sizeof(float), scale,
        accumulate, stream);
  });
}

void SwapDevice::add_squared_norm(const float* values, std::size_t numel, double* sum,
                                  device::Stream& stream) {
  if (find(values) == nullptr) {
    host_->add_squared_norm(values, numel, sum, stream);
    return;
  }
  read_bytes(values, numel * sizeof(float), [&](std::size_t, std::span<const std::byte> part) {
    host_->add_squared_norm(reinterpret_cast<const float*>(part.data()),
                            part.size() / sizeof(float), sum, stream);
  });
}

void SwapDevice::scale_clamped(float* values, std::size_t numel, float scale, float limit,
                               device::Stream& stream) {
  if (find(values) == nullptr) {
    host_->scale_clamped(values, numel, scale, limit, stream);
    return;
  }
  write_bytes(values, numel * sizeof(float), [&](std::size_t at, std::span<std::byte> part) {
    copy(part.data(), reinterpret_cast<std::byte*>(values) + at, part.size(), stream);
    host_->scale_clamped(reinterpret_cast<float*>(part.data()), part.size() / sizeof(float), scale,
                         limit, stream);
  });
}

// --- the update in tiles ---

/// An array of an update.
struct SwapDevice::Operand {
  void* device::UpdateArrays::*place;  ///< null: the gradients, which are only read
  std::byte* values;
  std::size_t size;  ///< of an element, in bytes
  bool in_file;
};

/// Ranges that are updated together, with begins relative to element `begin` of the arrays.
struct SwapDevice::Tile {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<device::UpdateRange> ranges;
};

std::vector<SwapDevice::Operand> SwapDevice::operands_of(const device::UpdateArrays& arrays) const {
  const std::size_t of_moments = nbytes_of(arrays.moment_dtype);
  const std::pair<void * device::UpdateArrays::*, std::size_t> all[] = {
      {&device::UpdateArrays::weights, nbytes_of(arrays.weight_dtype)},
      {&device::UpdateArrays::first, of_moments},
      {&device::UpdateArrays::second, of_moments},
      {&device::UpdateArrays::third, of_moments},
      {&device::UpdateArrays::rounded, nbytes_of(arrays.rounded_dtype)}};
  std::vector<Operand> operands;
  for (const auto& [place, size] : all) {
    if (void* const values = arrays.*place) {
      operands.push_back({place, static_cast<std::byte*>(values), size, find(values) != nullptr});
    }
  }
  auto* const grads = reinterpret_cast<std::byte*>(const_cast<float*>(arrays.grads));
  operands.push_back({nullptr, grads, sizeof(float), find(grads) != nullptr});
  return operands;
}

/// Cuts ranges at multiples of `numel`. Tiles have no page in common.
std::vector<SwapDevice::Tile> SwapDevice::tiles_of(std::span<const device::UpdateRange> ranges,
                                                   std::int64_t numel) {
  std::vector<device::UpdateRange> sorted(ranges.begin(), ranges.end());
  std::ranges::sort(sorted, {}, &device::UpdateRange::begin);
  std::vector<Tile> tiles;
  for (const device::UpdateRange& range : sorted) {
    const std::int64_t end = range.begin + range.numel;
    for (std::int64_t begin = range.begin; begin < end;) {
      const std::int64_t stop = std::min(end, (begin / numel + 1) * numel);
      if (tiles.empty() || tiles.back().begin / numel != begin / numel) {
        tiles.push_back({begin / kTileStep * kTileStep, begin, {}});
      }
      tiles.back().ranges.push_back({begin - tiles.back().begin, stop - begin, range.decays});
      tiles.back().end = stop;
      begin = stop;
    }
  }
  return tiles;
}

void SwapDevice::update(const kernels::UpdateStep& step, const device::UpdateArrays& arrays,
                        std::span<const device::UpdateRange> ranges, device::Stream& stream) {
  const std::vector<Operand> operands = operands_of(arrays);
  std::size_t in_files = 0;  // bytes per element
  for (const Operand& each : operands) {
    in_files += each.in_file ? each.size : 0;
  }
  if (in_files == 0) {
    host_->update(step, arrays, ranges, stream);
    return;
  }
  const std::vector<Tile> tiles =
      tiles_of(ranges, static_cast<std::int64_t>(slot_nbytes_ / in_files) / kTileStep * kTileStep);
  std::deque<Slot*> ready;
  std::size_t ahead = 0;
  for (const Tile& tile : tiles) {
    // Half of the buffers at most are for reads, so that writes run beside them.
    while (ahead < tiles.size() && (ready.empty() || ready.size() < slots_.size() / 2)) {
      Slot* const slot = take(ready.empty());
      if (slot == nullptr) {
        break;
      }
      assign_parts(*slot, operands, tiles[ahead++]);
      read(*slot);
      ready.push_back(slot);
    }
    Slot& slot = *ready.front();
    ready.pop_front();
    finish(slot);
    compute_tile(slot, operands, tile, step, arrays, stream);
    if (operands.back().in_file) {
      slot.pages.pop_back();  // the gradients
    }
    if (slot.pages.empty()) {
      slot.state = Slot::State::free;
    } else {
      write(slot);
    }
  }
}

/// Gives each array of a tile that lies in a file its part of the buffer.
void SwapDevice::assign_parts(Slot& slot, std::span<const Operand> operands,
                              const Tile& tile) const {
  std::size_t at = 0;
  for (const Operand& each : operands) {
    if (each.in_file) {
      slot.pages.push_back(pages_of(each.values + static_cast<std::size_t>(tile.begin) * each.size,
                                    static_cast<std::size_t>(tile.end - tile.begin) * each.size,
                                    slot, at));
      at += slot.pages.back().nbytes;
    }
  }
}

void SwapDevice::compute_tile(const Slot& slot, std::span<const Operand> operands, const Tile& tile,
                              const kernels::UpdateStep& step, device::UpdateArrays arrays,
                              device::Stream& stream) {
  auto pages = slot.pages.begin();
  for (const Operand& each : operands) {
    std::byte* const values = each.in_file
                                  ? (pages++)->data
                                  : each.values + static_cast<std::size_t>(tile.begin) * each.size;
    if (each.place != nullptr) {
      arrays.*each.place = values;
    } else {
      arrays.grads = reinterpret_cast<const float*>(values);
    }
  }
  arrays.noise_first += static_cast<std::uint32_t>(tile.begin);
  for (const device::UpdateRange& range : tile.ranges) {
    for (std::int64_t at = 0; at < range.numel; at += kProgressNumel) {
      const device::UpdateRange part{range.begin + at, std::min(kProgressNumel, range.numel - at),
                                     range.decays};
      host_->update(step, arrays, {&part, 1}, stream);
      transfers_->progress();
    }
  }
}

}  // namespace acc::swap
