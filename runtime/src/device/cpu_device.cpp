// SPDX-License-Identifier: Apache-2.0
#include "device/cpu_device.hpp"

#include "acc/base/error.hpp"
#include "device/host_clock.hpp"
#include "device/memory_ledger.hpp"
#include "device/thread_team.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace acc::device {
namespace {

/// Memory consists of whole pages, so that each piece can be protected by mprotect on its own.
constexpr std::size_t kAlignment = 4096;
/// From this size on memory comes directly from the system and returns there when it is freed. It
/// consists of huge pages where the system has them: first accesses then cost a tenth.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

Error no_memory(std::size_t nbytes, std::string_view what) {
  return {Errc::out_of_memory,
          fmt::format("cpu: out of memory: cannot allocate {} bytes for {}", nbytes, what)};
}

class HostMemory final : public Memory {
 public:
  HostMemory(std::size_t nbytes, std::string what, std::shared_ptr<MemoryLedger> ledger)
      : what_(std::move(what)), ledger_(std::move(ledger)) {
    const std::size_t rounded =
        std::max((nbytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
    if (rounded >= kHugePage) {
      map(rounded);
    } else {
      take_from_heap(rounded);
    }
    nbytes_ = nbytes;
    ledger_->add(static_cast<std::int64_t>(nbytes_), what_);
  }
  ~HostMemory() override {
    ledger_->add(-static_cast<std::int64_t>(nbytes_), what_);
    if (mapping_ != nullptr) {
      ::munmap(mapping_, mapped_nbytes_);
    }
    std::free(block_);
  }

 private:
  static std::byte* aligned(void* memory, std::size_t alignment) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<std::byte*>((begin + alignment - 1) / alignment * alignment);
  }

  /// Not by aligned_alloc: glibc before 2.38 does not find the memory that it has freed again (its
  /// bug 14581). If the program keeps something of each step, a gradient that is allocated in each
  /// step would then take new memory each time.
  void take_from_heap(std::size_t nbytes) {
    block_ = std::malloc(nbytes + kAlignment);
    if (block_ == nullptr) {
      throw no_memory(nbytes, what_);
    }
    data_ = aligned(block_, kAlignment);
    std::memset(data_, 0, nbytes);
  }

  /// Maps zero-filled memory that begins at a huge page.
  void map(std::size_t nbytes) {
    mapped_nbytes_ = nbytes + kHugePage;
    void* const mapped =
        ::mmap(nullptr, mapped_nbytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw no_memory(nbytes, what_);
    }
    mapping_ = mapped;
    data_ = aligned(mapping_, kHugePage);
    ::madvise(data_, nbytes, MADV_HUGEPAGE);  // only a hint
  }

  std::string what_;
  std::shared_ptr<MemoryLedger> ledger_;
  void* block_ = nullptr;  ///< of the heap; null: `data_` is mapped
  void* mapping_ = nullptr;
  std::size_t mapped_nbytes_ = 0;
};

// All work runs on the calling thread before the call returns. So streams need no queue, waits for
// events do nothing, and an event is complete when it is recorded; it only stores the time.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(std::string name) : Stream(std::move(name)) {}
};

class CpuEvent final : public Event {
 public:
  CpuEvent() = default;
  bool done() const override { return true; }
  void synchronize() const override {}
  double microseconds() const override { return when_; }

 private:
  double when_ = host_microseconds();
};

/// Number of elements that a thread takes at a time.
constexpr std::int64_t kTile = 1 << 16;

/// Cuts ranges into tiles of at most kTile elements.
std::vector<UpdateRange> tiles_of(std::span<const UpdateRange> ranges) {
  std::vector<UpdateRange> tiles;
  for (const UpdateRange& range : ranges) {
    for (std::int64_t begin = 0; begin < range.numel; begin += kTile) {
      tiles.push_back({range.begin + begin, std::min(kTile, range.numel - begin), range.decays});
    }
  }
  return tiles;
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : team_(threads) {}

  settings::Device kind() const noexcept override { return settings::Device::cpu; }
  int index() const noexcept override { return 0; }
  std::string describe() const override { return "cpu"; }
  std::string hardware_id() const override { return "cpu"; }

  MemoryPtr allocate(std::size_t nbytes, std::string_view what) override {
    return std::make_shared<HostMemory>(nbytes, std::string(what), ledger_);
  }
  MemoryPtr allocate_host(std::size_t nbytes, std::string_view what) override {
    return allocate(nbytes, what);
  }
  void pin(void*, std::size_t) override {}
  void unpin(void*) noexcept override {}
  void account(std::int64_t nbytes, std::string_view what) override { ledger_->add(nbytes, what); }
  void trim() override {}
  Error out_of_memory(std::size_t nbytes, std::string_view what) const override {
    return no_memory(nbytes, what);
  }
  MemoryMetrics memory() const override { return ledger_->figures(); }

  Stream& compute() noexcept override { return compute_; }
  StreamPtr make_stream(std::string name) override {
    return std::make_shared<CpuStream>(std::move(name));
  }
  EventPtr record(Stream&) override { return std::make_shared<CpuEvent>(); }
  void wait(Stream&, const Event&) override {}
  void synchronize() override {}
  void time_events(bool) override {}

  void copy(void* to, const void* from, std::size_t nbytes, Stream&) override {
    if (to != from && nbytes > 0) {
      std::memcpy(to, from, nbytes);
    }
  }
  void zero(void* to, std::size_t nbytes, Stream&) override { std::memset(to, 0, nbytes); }
  void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
            Stream&) override {
    kernels::cast(from, from_dtype, to, to_dtype, numel);
  }
  void add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel, float scale,
                  bool accumulate, Stream&) override {
    kernels::kernels().reduce({.sources = {&from, 1},
                               .destinations = {&to, 1},
                               .numel = numel,
                               .dtype = from_dtype,
                               .scale = scale,
                               .accumulate = accumulate});
  }
  void add_squared_norm(const float* values, std::size_t numel, double* sum, Stream&) override {
    // Sums by tiles also on one thread, so that the result does not depend on the number of
    // threads.
    const auto tiles = tiles_of(std::vector<UpdateRange>{{0, static_cast<std::int64_t>(numel)}});
    std::vector<double> sums(tiles.size());
    team_.run(tiles.size(), [&](std::size_t i) {
      sums[i] = kernels::kernels().squared_norm(values + tiles[i].begin,
                                                static_cast<std::size_t>(tiles[i].numel));
    });
    *sum = std::accumulate(sums.begin(), sums.end(), *sum);
  }
  void clip_to_norm(const double* squares, int ranks, double max_norm,
                    kernels::ClipFigures* figures, Stream&) override {
    const double norm = std::sqrt(squares[0] + squares[1] / ranks);
    const double coefficient = kernels::clip_coefficient(norm, max_norm);
    *figures = {norm, coefficient, static_cast<float>(coefficient)};
  }
  void scale_clamped(float* values, std::size_t numel, float scale, float limit, Stream&) override {
    const UpdateRange all{0, static_cast<std::int64_t>(numel)};
    for_each_tile({&all, 1}, [&](const UpdateRange& range) {
      kernels::kernels().scale_clamped(values + range.begin, scale, limit,
                                       static_cast<std::size_t>(range.numel));
    });
  }
  void update(const kernels::UpdateStep& step, const UpdateArrays& arrays,
              std::span<const UpdateRange> ranges, Stream&) override {
    for_each_tile(ranges, [&](const UpdateRange& range) {
      kernels::kernels().update(kernels::adjusted(step, arrays.clip, range.decays), arrays,
                                static_cast<std::size_t>(range.begin),
                                static_cast<std::size_t>(range.numel));
    });
  }
  int threads() const noexcept override { return team_.size(); }
  void run_parts(std::size_t parts, const std::function<void(std::size_t)>& task) override {
    team_.run(parts, task);
  }

 private:
  /// Calls `update` for all ranges; with several threads, for tiles of them in parallel. Each
  /// element is updated independently, so the result does not depend on the tiles.
  template <typename Update>
  void for_each_tile(std::span<const UpdateRange> ranges, const Update& update) {
    if (team_.size() == 1) {
      std::for_each(ranges.begin(), ranges.end(), update);
      return;
    }
    const auto tiles = tiles_of(ranges);
    team_.run(tiles.size(), [&](std::size_t i) { update(tiles[i]); });
  }

  ThreadTeam team_;
  std::shared_ptr<MemoryLedger> ledger_ = std::make_shared<MemoryLedger>();
  CpuStream compute_{"compute"};
};

}  // namespace

DevicePtr open_cpu_device(int threads) {
  return std::make_shared<CpuDevice>(threads);
}

}  // namespace acc::device
