// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/runtime/types.hpp"
#include "acc/settings/sharding_settings.hpp"
#include "kernels/kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Interface to the place where a rank computes: memory, streams, and the few loops that sharding
/// needs. On the CPU, a call does its work at once on the calling thread. On a GPU, it queues the
/// work on a stream. Code outside of this folder does not distinguish the two.
namespace acc::device {

/// Memory of a device, or page-locked memory of its host. Returns to the device's cache with the
/// last reference. By then, all work that uses it must be complete or ordered before the compute
/// stream: the next owner's first use is ordered after the compute stream only.
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

/// A queue of work that runs in order. Work on two streams may run at the same time unless an event
/// orders it.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// The cudaStream_t; null on the CPU.
  [[nodiscard]] virtual void* native() const noexcept { return nullptr; }
  /// Name in traces, such as "compute".
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 protected:
  explicit Stream(std::string name) : name_(std::move(name)) {}

 private:
  std::string name_;
};
using StreamPtr = std::shared_ptr<Stream>;

/// A point in a stream, recorded by `Device::record`.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// True if all work before the event is complete. Throws Error(device) if that work failed.
  [[nodiscard]] virtual bool done() const = 0;
  /// Blocks this thread until all work before the event is complete.
  virtual void synchronize() const = 0;
  /// Time at which the event was reached, in microseconds of the host's steady clock. Only valid
  /// once `done`. On a GPU only for events recorded while event timing was enabled
  /// (`Device::time_events`).
  [[nodiscard]] virtual double microseconds() const = 0;

 protected:
  Event() = default;
};
using EventPtr = std::shared_ptr<Event>;

/// Receiver of the times at which collectives ran.
class Timeline {
 public:
  /// A collective as a timeline shows it.
  struct Collective {
    std::string name;
    std::string id;  ///< the same on all its ranks, and of no other collective; may be empty
  };
  virtual ~Timeline() = default;
  /// Describes the collective that is being issued, with the unit for which it runs. `what`: its
  /// kind and size.
  [[nodiscard]] virtual Collective issued(std::string what) = 0;
  /// Adds a collective that runs on `stream` from `begin` to `end`. The events need not be reached
  /// yet.
  virtual void add(Collective collective, const std::string& stream, EventPtr begin,
                   EventPtr end) = 0;
};

/// Memory statistics of a device, in bytes.
struct MemoryMetrics {
  std::int64_t allocated = 0;       ///< in use by this process
  std::int64_t peak_allocated = 0;  ///< maximum of `allocated` so far
  std::int64_t reserved = 0;        ///< allocated from the driver: in use or cached
  std::int64_t host_allocated = 0;  ///< page-locked host memory in use
  struct Holder {
    std::string what;
    std::int64_t nbytes;
  };
  std::vector<Holder> holders;  ///< `allocated` by purpose, largest first
};

/// Part of a shard whose elements belong to one parameter, in elements. An optimizer step changes
/// only elements that a range covers.
struct UpdateRange {
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  bool decays = true;  ///< true if weight decay applies
};

/// Arrays of one shard for an optimizer step; each [shard numel] in the device's memory.
using kernels::UpdateArrays;

/// A place to compute. Used only by the thread that opened it. Pointers are to this device's memory
/// or, where stated, to host memory that it allocated. Sizes are in elements unless the name says
/// bytes. Work is queued and may not be complete when a call returns. Throws Error(device |
/// out_of_memory).
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual settings::Device kind() const noexcept = 0;
  [[nodiscard]] virtual int index() const noexcept = 0;  ///< 0 on the CPU
  /// Name for messages: "cpu", "cuda:0 (NVIDIA H200)".
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Identifies the hardware across the processes of a host: "GPU-" and the UUID, or "cpu".
  [[nodiscard]] virtual std::string hardware_id() const = 0;

  // --- memory
  /// True if the host may read and write this memory of the device itself, without `copy`.
  [[nodiscard]] virtual bool host_can_use(const void* /*memory*/) const {
    return kind() == settings::Device::cpu;
  }
  /// Allocates device memory, aligned to 256 bytes and zero-filled on the compute stream: other
  /// streams must wait for that stream before they use it. `what` is the purpose in reports and
  /// out-of-memory errors, such as "optimizer moments".
  virtual MemoryPtr allocate(std::size_t nbytes, std::string_view what) = 0;
  /// Allocates zero-filled host memory that this device copies from and to asynchronously
  /// (page-locked for a GPU).
  virtual MemoryPtr allocate_host(std::size_t nbytes, std::string_view what) = 0;
  /// Page-locks host memory that the caller owns, until `unpin`.
  virtual void pin(void* data, std::size_t nbytes) = 0;
  virtual void unpin(void* data) noexcept = 0;
  /// Adds memory to the statistics that was not allocated here, for example by NCCL. Negative:
  /// freed.
  virtual void account(std::int64_t nbytes, std::string_view what) = 0;
  /// Returns cached, unused memory to the driver, so that others can allocate it.
  virtual void trim() = 0;
  /// The Error(out_of_memory) for an allocation that failed elsewhere. Lists the memory per
  /// purpose.
  [[nodiscard]] virtual Error out_of_memory(std::size_t nbytes, std::string_view what) const = 0;
  [[nodiscard]] virtual MemoryMetrics memory() const = 0;

  // --- order
  /// The stream of the program's own computation.
  [[nodiscard]] virtual Stream& compute() noexcept = 0;
  virtual StreamPtr make_stream(std::string name) = 0;
  /// Records an event after everything that has been issued to `stream`.
  virtual EventPtr record(Stream& stream) = 0;
  /// Makes everything that is issued to `stream` from now on run after `event`. Does not block the
  /// host.
  virtual void wait(Stream& stream, const Event& event) = 0;
  /// Blocks this thread until all work on all streams of this device is done.
  virtual void synchronize() = 0;
  /// Enables timing for events recorded from now on. It makes recording slower on a GPU.
  virtual void time_events(bool enabled) = 0;
  /// Sets the receiver of the times of collectives on this device; null: none. Not owned.
  void set_timeline(Timeline* timeline) noexcept { timeline_ = timeline; }
  [[nodiscard]] Timeline* timeline() const noexcept { return timeline_; }

  // --- work, queued on `stream`
  /// Copies between any two of memory of this device and host memory. No overlap.
  virtual void copy(void* to, const void* from, std::size_t nbytes, Stream& stream) = 0;
  virtual void zero(void* to, std::size_t nbytes, Stream& stream) = 0;
  /// Converts between float32, bfloat16 and float16, rounding to nearest even. Equal dtypes: a
  /// copy.
  virtual void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
                    Stream& stream) = 0;
  /// to = (accumulate ? to : 0) + scale * from, in float32. `to` may be `from` when that is
  /// float32.
  virtual void add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel,
                          float scale, bool accumulate, Stream& stream) = 0;
  /// *sum += the sum of squares, computed in double in an order that depends only on numel. sum:
  /// memory of this device.
  virtual void add_squared_norm(const float* values, std::size_t numel, double* sum,
                                Stream& stream) = 0;
  /// Computes the norm sqrt(squares[0] + squares[1] / ranks) and the factor that clips to
  /// `max_norm` (`kernels::clip_coefficient`). squares: [2]; both in memory of this device.
  virtual void clip_to_norm(const double* squares, int ranks, double max_norm,
                            kernels::ClipFigures* figures, Stream& stream) = 0;
  /// values = scale * values, clamped to [-limit, limit]; NaN stays NaN.
  virtual void scale_clamped(float* values, std::size_t numel, float scale, float limit,
                             Stream& stream) = 0;
  /// Optimizer step by the rule of `step`, in one pass. Weight decay applies to the ranges that ask
  /// for it.
  virtual void update(const kernels::UpdateStep& step, const UpdateArrays& arrays,
                      std::span<const UpdateRange> ranges, Stream& stream) = 0;

  // --- computation on the threads of the CPU, on its memory; a GPU has one thread, and refuses it
  [[nodiscard]] virtual int threads() const noexcept = 0;
  /// Calls task(0), …, task(parts - 1), each once, on any of the threads, and returns when all are
  /// done. A task does not throw. Throws Error(not_supported) on a GPU.
  virtual void run_parts(std::size_t parts, const std::function<void(std::size_t)>& task) = 0;

 protected:
  Device() = default;

 private:
  Timeline* timeline_ = nullptr;
};
using DevicePtr = std::shared_ptr<Device>;

}  // namespace acc::device
