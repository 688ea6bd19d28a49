#pragma once

#include "acc/base/error.hpp"
#include "acc/plugins/sharding_settings.hpp"
#include "acc/runtime/types.hpp"
#include "kernels/kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Where a rank computes: memory, queues of work, and the few loops that sharding needs there. Two
/// kinds, one interface: on the CPU everything happens at once on the calling thread; on a GPU it
/// is queued on a stream. Nothing above this folder knows which.
namespace acc::device {

/// Memory of a device, or of the host beside it. Goes back to the device's cache with the last
/// reference; work that uses it must by then be done, or come before in the compute stream.
class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }

  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

 protected:
  Memory() = default;
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};
using MemoryPtr = std::shared_ptr<Memory>;

/// A queue of work that runs in order. Two queues run side by side unless an event orders them.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// The cudaStream_t; null on the CPU.
  [[nodiscard]] virtual void* native() const noexcept { return nullptr; }
  /// For traces: "compute", "gather", …
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 protected:
  explicit Stream(std::string name) : name_(std::move(name)) {}

 private:
  std::string name_;
};
using StreamPtr = std::shared_ptr<Stream>;

/// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// Whether all work before it is done. Throws Error(device) when that work failed.
  [[nodiscard]] virtual bool done() const = 0;
  /// Blocks this thread until it is.
  virtual void synchronize() const = 0;
  /// When it was reached, in microseconds of the host's steady clock; only once `done`, and on a
  /// GPU only for events that were recorded while `Device::time_events(true)` held.
  [[nodiscard]] virtual double microseconds() const = 0;

 protected:
  Event() = default;
};
using EventPtr = std::shared_ptr<Event>;

/// Who wants to know when collectives ran.
class Timeline {
 public:
  virtual ~Timeline() = default;
  /// A collective ran on `stream` from `begin` to `end`, which need not be reached yet.
  virtual void add(std::string name, const std::string& stream, EventPtr begin, EventPtr end) = 0;
};

/// What a device holds, in bytes.
struct MemoryFigures {
  std::int64_t allocated = 0;       ///< handed out
  std::int64_t peak_allocated = 0;  ///< the most so far
  std::int64_t reserved = 0;        ///< handed out or cached: what the driver has given
  std::int64_t host_allocated = 0;  ///< page-locked host memory
  struct Holder {
    std::string what;
    std::int64_t nbytes;
  };
  std::vector<Holder> holders;  ///< `allocated` by purpose, largest first
};

/// A part of a shard whose elements belong to one parameter, for the optimizer; elements that no
/// range covers are left alone.
struct UpdateRange {
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  bool decays = true;  ///< whether weight decay applies
};

/// One shard as an optimizer step sees it; each [shard numel] in the device's memory.
using kernels::UpdateArrays;

/// A place to compute. Used by one thread, the one that opened it. All pointers are of this
/// device's memory or, where said, of host memory that it allocated; sizes are in elements unless
/// the name says bytes. Work is queued and may not have happened when a call returns. Throws
/// Error(device | out_of_memory).
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual plugins::Device kind() const noexcept = 0;
  [[nodiscard]] virtual int index() const noexcept = 0;  ///< 0 on the CPU
  /// "cpu", "cuda:0 (NVIDIA H200)".
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Names the piece of hardware across processes of a host ("GPU-8a3f…"; "cpu").
  [[nodiscard]] virtual std::string hardware_id() const = 0;

  // --- memory
  /// Zero-filled, aligned to 256 bytes. `what` says whose it is, in reports and when memory is
  /// short: "optimizer moments".
  virtual MemoryPtr allocate(std::size_t nbytes, std::string_view what) = 0;
  /// Host memory that this device copies from and to without waiting (page-locked for a GPU).
  /// Zero-filled.
  virtual MemoryPtr allocate_host(std::size_t nbytes, std::string_view what) = 0;
  /// The same property for host memory that somebody else owns, until `unpin`.
  virtual void pin(void* data, std::size_t nbytes) = 0;
  virtual void unpin(void* data) noexcept = 0;
  /// Enters memory into the figures that was not allocated here (NCCL's own, say); negative: gone.
  virtual void account(std::int64_t nbytes, std::string_view what) = 0;
  /// Gives what is cached and unused back to the driver, for others.
  virtual void trim() = 0;
  /// The Error(out_of_memory) of an allocation that failed elsewhere: who holds what.
  [[nodiscard]] virtual Error out_of_memory(std::size_t nbytes, std::string_view what) const = 0;
  [[nodiscard]] virtual MemoryFigures memory() const = 0;

  // --- order
  /// Where the program computes.
  [[nodiscard]] virtual Stream& compute() noexcept = 0;
  virtual StreamPtr make_stream(std::string name) = 0;
  virtual EventPtr record(Stream& stream) = 0;
  /// What is issued to `stream` from now on runs after `event`.
  virtual void wait(Stream& stream, const Event& event) = 0;
  /// Blocks this thread until all work on all streams of this device is done.
  virtual void synchronize() = 0;
  virtual void time_events(bool enabled) = 0;
  /// Null: nobody. Process groups tell it of what they run on streams of this device.
  void set_timeline(Timeline* timeline) noexcept { timeline_ = timeline; }
  [[nodiscard]] Timeline* timeline() const noexcept { return timeline_; }

  // --- work, queued on `stream`
  /// Between any two of: memory of this device, host memory.
  virtual void copy(void* to, const void* from, std::size_t nbytes, Stream& stream) = 0;
  virtual void zero(void* to, std::size_t nbytes, Stream& stream) = 0;
  /// Any two of float32, bfloat16 and float16; to nearest even. The same dtype copies.
  virtual void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
                    Stream& stream) = 0;
  /// to = (accumulate ? to : 0) + scale * from, in float32. `to` may be `from` when that is
  /// float32.
  virtual void add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel,
                          float scale, bool accumulate, Stream& stream) = 0;
  /// *sum += the sum of squares, in double and in an order that depends on numel alone.
  /// sum: memory of this device.
  virtual void add_squared_norm(const float* values, std::size_t numel, double* sum,
                                Stream& stream) = 0;
  /// values = scale * values, brought into [-limit, limit]; NaN stays NaN.
  virtual void scale_clamped(float* values, std::size_t numel, float scale, float limit,
                             Stream& stream) = 0;
  /// torch.optim.AdamW's and SGD's rules in one pass; the coefficients' decay applies where a
  /// range says so.
  virtual void adamw(const kernels::AdamWCoefficients& coefficients, const UpdateArrays& arrays,
                     std::span<const UpdateRange> ranges, Stream& stream) = 0;
  virtual void sgd(const kernels::SgdCoefficients& coefficients, const UpdateArrays& arrays,
                   std::span<const UpdateRange> ranges, Stream& stream) = 0;

 protected:
  Device() = default;

 private:
  Timeline* timeline_ = nullptr;
};
using DevicePtr = std::shared_ptr<Device>;

}  // namespace acc::device
