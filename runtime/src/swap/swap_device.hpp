// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"
#include "swap/swap_file.hpp"
#include "swap/transfers.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::swap {

/// The CPU, with further memory that lies in files (offload to NVMe). `allocate` gives host memory;
/// `allocate_in_file` gives memory whose addresses are for the functions of this device only: the
/// host cannot use them (`host_can_use`).
///
/// Data passes through a fixed number of page-aligned buffers. `update` works in tiles: it reads
/// the next ones and writes the last ones while it computes one. Writes may be under way when a
/// call returns; later calls see their data, and `synchronize` waits for them. After a transfer has
/// failed, this and all later calls that use files throw Error(device).
class SwapDevice final : public device::Device, public std::enable_shared_from_this<SwapDevice> {
 public:
  /// host: the CPU.
  SwapDevice(device::DevicePtr host, const settings::NvmeSettings& settings);
  ~SwapDevice() override;

  /// Allocates zero-filled memory in a file in `folder`. setting: the key that names the folder.
  device::MemoryPtr allocate_in_file(std::size_t nbytes, const std::string& folder,
                                     const std::string& setting);
  /// A read that is under way. Its end waits for it.
  class Reading;
  using ReadingPtr = std::unique_ptr<Reading>;
  /// Starts to read `nbytes` of an allocation at `from` into `to`, which has room for whole pages.
  /// Null if that is done already, because `from` or `to` does not begin at a page.
  ReadingPtr start_reading(const void* from, std::byte* to, std::size_t nbytes);
  /// Hands further requests to the disk. Does not block.
  void progress() { transfers_->progress(); }
  /// Bytes in files, and of the buffers.
  [[nodiscard]] std::int64_t file_nbytes() const noexcept;
  [[nodiscard]] std::int64_t buffer_nbytes() const noexcept;
  /// Name of the engine, and bytes moved so far.
  [[nodiscard]] const char* engine() const noexcept { return transfers_->name(); }
  [[nodiscard]] std::uint64_t read_nbytes() const noexcept { return read_nbytes_; }
  [[nodiscard]] std::uint64_t written_nbytes() const noexcept { return written_nbytes_; }

  [[nodiscard]] settings::Device kind() const noexcept override { return host_->kind(); }
  [[nodiscard]] int index() const noexcept override { return host_->index(); }
  [[nodiscard]] std::string describe() const override { return host_->describe(); }
  [[nodiscard]] std::string hardware_id() const override { return host_->hardware_id(); }
  [[nodiscard]] bool host_can_use(const void* memory) const override {
    return find(memory) == nullptr;
  }
  device::MemoryPtr allocate(std::size_t nbytes, std::string_view what) override {
    return host_->allocate(nbytes, what);
  }
  device::MemoryPtr allocate_host(std::size_t nbytes, std::string_view what) override {
    return host_->allocate_host(nbytes, what);
  }
  void pin(void* data, std::size_t nbytes) override { host_->pin(data, nbytes); }
  void unpin(void* data) noexcept override { host_->unpin(data); }
  void account(std::int64_t nbytes, std::string_view what) override {
    host_->account(nbytes, what);
  }
  void trim() override { host_->trim(); }
  [[nodiscard]] Error out_of_memory(std::size_t nbytes, std::string_view what) const override {
    return host_->out_of_memory(nbytes, what);
  }
  [[nodiscard]] device::MemoryMetrics memory() const override { return host_->memory(); }
  [[nodiscard]] device::Stream& compute() noexcept override { return host_->compute(); }
  device::StreamPtr make_stream(std::string name) override {
    return host_->make_stream(std::move(name));
  }
  device::EventPtr record(device::Stream& stream) override { return host_->record(stream); }
  void wait(device::Stream& stream, const device::Event& event) override {
    host_->wait(stream, event);
  }
  /// Waits for all writes.
  void synchronize() override;
  void time_events(bool enabled) override { host_->time_events(enabled); }

  void copy(void* to, const void* from, std::size_t nbytes, device::Stream& stream) override;
  void zero(void* to, std::size_t nbytes, device::Stream& stream) override;
  void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
            device::Stream& stream) override;
  void update(const kernels::UpdateStep& step, const device::UpdateArrays& arrays,
              std::span<const device::UpdateRange> ranges, device::Stream& stream) override;

  /// from: host memory.
  void add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel, float scale,
                  bool accumulate, device::Stream& stream) override;
  void add_squared_norm(const float* values, std::size_t numel, double* sum,
                        device::Stream& stream) override;
  void scale_clamped(float* values, std::size_t numel, float scale, float limit,
                     device::Stream& stream) override;

  // For host memory only: figures, matrices.
  void clip_to_norm(const double* squares, int ranks, double max_norm,
                    kernels::ClipFigures* figures, device::Stream& stream) override {
    host_->clip_to_norm(squares, ranks, max_norm, figures, stream);
  }
  [[nodiscard]] int threads() const noexcept override { return host_->threads(); }
  void run_parts(std::size_t parts, const std::function<void(std::size_t)>& task) override {
    host_->run_parts(parts, task);
  }

 private:
  class FileMemory;
  /// An allocation: addresses [begin, end) stand for the bytes from `offset` of a file.
  struct Extent {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    SwapFile* file = nullptr;
    std::uint64_t offset = 0;
    std::size_t nbytes = 0;  ///< on the disk
  };
  /// Whole pages of a file.
  struct Pages {
    SwapFile* file = nullptr;
    std::uint64_t offset = 0;
    std::size_t nbytes = 0;
    std::byte* data = nullptr;  ///< in a buffer
  };
  /// A buffer of the pool.
  struct Slot {
    enum class State { free, used, writing };
    State state = State::free;
    int number = 0;
    device::MemoryPtr memory;
    std::vector<Pages> pages;
    Transfer transfer;
    std::uint64_t turn = 0;  ///< of its write
  };
  struct Operand;
  struct Tile;

  [[nodiscard]] const Extent* find(const void* memory) const;
  [[nodiscard]] const Extent& extent_of(const void* memory) const;
  /// The pages that contain bytes of an allocation, to be in a slot from its byte `at`.
  Pages pages_of(const void* memory, std::size_t nbytes, const Slot& slot, std::size_t at) const;
  void release(const Extent& extent) noexcept;
  void end_transfers() noexcept;

  /// Returns a slot that is not in use; null if there is none and it must not wait for a write.
  Slot* take(bool may_wait);
  void start(Slot& slot, bool writes);
  void read(Slot& slot);
  void write(Slot& slot);
  void check_ended(const Transfer& transfer, const SwapFile& file);
  /// Waits for the slot's transfer. Throws Error(device) if it failed.
  void finish(Slot& slot);
  void check() const;
  /// Waits for writes to the same pages.
  void await_writes(const std::vector<Pages>& pages);

  /// Calls `visit` with all bytes of an allocation's part, in order, in memory of the host.
  using Visit = std::function<void(std::size_t at, std::span<const std::byte> bytes)>;
  void read_bytes(const void* from, std::size_t nbytes, const Visit& visit);
  using Fill = std::function<void(std::size_t at, std::span<std::byte> to)>;
  void write_bytes(void* to, std::size_t nbytes, const Fill& fill);
  /// The bytes that a step of read_bytes and write_bytes takes from `at` on.
  [[nodiscard]] std::size_t step_of(const void* memory, std::size_t at, std::size_t nbytes) const;
  [[nodiscard]] std::vector<Operand> operands_of(const device::UpdateArrays& arrays) const;
  static std::vector<Tile> tiles_of(std::span<const device::UpdateRange> ranges,
                                    std::int64_t numel);
  void assign_parts(Slot& slot, std::span<const Operand> operands, const Tile& tile) const;
  void compute_tile(const Slot& slot, std::span<const Operand> operands, const Tile& tile,
                    const kernels::UpdateStep& step, device::UpdateArrays arrays,
                    device::Stream& stream);

  device::DevicePtr host_;
  std::size_t slot_nbytes_;
  std::vector<std::unique_ptr<SwapFile>> files_;
  std::map<const std::byte*, Extent> extents_;  ///< by the end of the addresses
  std::vector<Slot> slots_;
  std::unique_ptr<Transfers> transfers_;
  std::uint64_t turns_ = 0;
  std::string failure_;  ///< of the first transfer that failed; empty: none
  std::uint64_t read_nbytes_ = 0;
  std::uint64_t written_nbytes_ = 0;
};

class SwapDevice::Reading {
 public:
  Reading(std::shared_ptr<SwapDevice> device, const Pages& pages);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  /// Blocks until the values are there. Throws Error(device) if the read has failed.
  void wait();

 private:
  std::shared_ptr<SwapDevice> device_;
  Pages pages_;
  Transfer transfer_;
};

}  // namespace acc::swap
