// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_device.hpp"

#include "acc/base/error.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/cuda_events.hpp"
#include "cuda/cuda_memory.hpp"
#include "cuda/kernels/kernels.hpp"
#include "device/host_clock.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

// Order of work on a GPU. Each stream runs its work in order. Streams are created with
// cudaStreamNonBlocking, so nothing is ordered by the default stream; the only order between
// streams is an event that one stream records and the other waits for (`record`, `wait`). Neither
// blocks the host.
//
// Memory returns to the cache without waiting for the GPU. This is correct because the next owner
// uses it on the compute stream first (`allocate` clears it there), behind all work that its last
// owner has ordered before that stream. Another stream that allocates for itself has to wait for
// the compute stream, as `add_squared_norm` does.
namespace acc::cuda {
namespace {

class CudaStream final : public device::Stream {
 public:
  CudaStream(std::string name, int priority, int device)
      : Stream(std::move(name)), device_(device) {
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority", device);
  }
  ~CudaStream() override {
    (void)cudaSetDevice(device_);
    (void)cudaStreamSynchronize(stream_);  // queued work may use `norm_partials`, freed next
    (void)cudaStreamDestroy(stream_);
  }
  void* native() const noexcept override { return stream_; }
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

  /// Partial sums of `add_squared_norm`; allocated at its first call on this stream.
  device::MemoryPtr norm_partials;

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

// Every stream and event that a CudaDevice is given was made by it.
CudaStream& native(device::Stream& stream) {
  return static_cast<CudaStream&>(stream);
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

class CudaDevice final : public device::Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    bind();
    check(cudaGetDeviceProperties(&properties_, index_), "cudaGetDeviceProperties", index_);
    int lowest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest_priority_),
          "cudaDeviceGetStreamPriorityRange", index_);
    pool_ = std::make_shared<MemoryPool>(index_);
    events_ = std::make_shared<EventPool>(index_);
    compute_ = std::make_shared<CudaStream>("compute", lowest, index_);
  }
  // Queued work may use memory that returns to the driver with the pool.
  ~CudaDevice() override {
    (void)cudaSetDevice(index_);
    (void)cudaDeviceSynchronize();
  }

  settings::Device kind() const noexcept override { return settings::Device::cuda; }
  int index() const noexcept override { return index_; }
  std::string describe() const override {
    return fmt::format("cuda:{} ({})", index_, properties_.name);
  }
  std::string hardware_id() const override { return uuid_text(properties_.uuid); }

  device::MemoryPtr allocate(std::size_t nbytes, std::string_view what) override {
    auto memory = pool_->allocate(nbytes, what);
    zero(memory->data(), nbytes, *compute_);
    return memory;
  }
  device::MemoryPtr allocate_host(std::size_t nbytes, std::string_view what) override;
  void pin(void* data, std::size_t nbytes) override {
    bind();
    check(cudaHostRegister(data, nbytes, cudaHostRegisterDefault), "cudaHostRegister", index_);
  }
  void unpin(void* data) noexcept override {
    (void)cudaSetDevice(index_);
    (void)cudaHostUnregister(data);
  }
  void account(std::int64_t nbytes, std::string_view what) override {
    pool_->account(nbytes, what);
  }
  void trim() override { pool_->trim(); }
  Error out_of_memory(std::size_t nbytes, std::string_view what) const override {
    return {Errc::out_of_memory, pool_->does_not_fit(nbytes, what)};
  }
  device::MemoryMetrics memory() const override { return pool_->figures(); }

  device::Stream& compute() noexcept override { return *compute_; }
  device::StreamPtr make_stream(std::string name) override {
    bind();
    return std::make_shared<CudaStream>(std::move(name), highest_priority_, index_);
  }
  device::EventPtr record(device::Stream& stream) override;
  void wait(device::Stream& stream, const device::Event& event) override {
    bind();
    check(cudaStreamWaitEvent(native(stream).get(), static_cast<const CudaEvent&>(event).native(),
                              cudaEventWaitDefault),
          "cudaStreamWaitEvent", index_);
  }
  void synchronize() override {
    bind();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", index_);
  }
  void time_events(bool enabled) override;

  void copy(void* to, const void* from, std::size_t nbytes, device::Stream& stream) override {
    if (to == from || nbytes == 0) {
      return;
    }
    bind();
    check(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDefault, native(stream).get()),
          "cudaMemcpyAsync", index_);
  }
  void zero(void* to, std::size_t nbytes, device::Stream& stream) override {
    if (nbytes == 0) {
      return;
    }
    bind();
    check(cudaMemsetAsync(to, 0, nbytes, native(stream).get()), "cudaMemsetAsync", index_);
  }
  void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
            device::Stream& stream) override {
    if (from_dtype == to_dtype) {
      copy(to, from, numel * nbytes_of(to_dtype), stream);
      return;
    }
    check(cuda::cast(from, from_dtype, to, to_dtype, numel, launch(stream)), "cast", index_);
  }
  void add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel, float scale,
                  bool accumulate, device::Stream& stream) override {
    check(cuda::add_scaled(from, from_dtype, to, numel, scale, accumulate, launch(stream)),
          "add_scaled", index_);
  }
  void add_squared_norm(const float* values, std::size_t numel, double* sum,
                        device::Stream& stream) override;
  void clip_to_norm(const double* squares, int ranks, double max_norm,
                    kernels::ClipFigures* figures, device::Stream& stream) override {
    check(cuda::clip_to_norm(squares, ranks, max_norm, figures, launch(stream)), "clip_to_norm",
          index_);
  }
  void scale_clamped(float* values, std::size_t numel, float scale, float limit,
                     device::Stream& stream) override {
    check(cuda::scale_clamped(values, numel, scale, limit, launch(stream)), "scale_clamped",
          index_);
  }
  void update(const kernels::UpdateStep& step, const device::UpdateArrays& arrays,
              std::span<const device::UpdateRange> ranges, device::Stream& stream) override {
    check(cuda::update(step, arrays, ranges, launch(stream)), "update", index_);
  }
  int threads() const noexcept override { return 1; }
  void run_parts(std::size_t, const std::function<void(std::size_t)>&) override {
    throw Error(Errc::not_supported, "a GPU runs no functions of the host");
  }

 private:
  // Sets the thread's current device. Other code on this thread may have changed it since the last
  // call.
  void bind() const { check(cudaSetDevice(index_), "cudaSetDevice", index_); }
  Launch launch(device::Stream& stream) const {
    bind();
    return {.stream = native(stream).get(), .multiprocessors = properties_.multiProcessorCount};
  }

  int index_;
  int highest_priority_ = 0;
  cudaDeviceProp properties_{};
  std::shared_ptr<MemoryPool> pool_;
  std::shared_ptr<EventPool> events_;
  std::shared_ptr<CudaStream> compute_;
  std::shared_ptr<CudaStream> clock_;  ///< always idle; made when timing is first enabled
  std::shared_ptr<const ClockAnchor> anchor_;
};

// Unlike device memory, host memory is written by the host, which is not ordered behind the compute
// stream. The piece may come from the cache while queued work of its last owner still reads it, so
// the host waits for the compute stream before it clears the piece.
device::MemoryPtr CudaDevice::allocate_host(std::size_t nbytes, std::string_view what) {
  auto memory = pool_->allocate_host(nbytes, what);
  check(cudaStreamSynchronize(compute_->get()), "cudaStreamSynchronize", index_);
  std::fill_n(memory->data(), nbytes, std::byte{0});
  return memory;
}

device::EventPtr CudaDevice::record(device::Stream& stream) {
  // Longest use of one anchor in microseconds (10 s). CUDA gives the time since the anchor as a
  // float in milliseconds, which loses digits as it grows, and the two clocks drift apart.
  constexpr double kAnchorHoldsFor = 10e6;
  bind();
  if (anchor_ != nullptr &&
      device::host_microseconds() - anchor_->host_microseconds > kAnchorHoldsFor) {
    anchor_ = std::make_shared<ClockAnchor>(events_, clock_->get(), index_);
  }
  return std::make_shared<CudaEvent>(events_, anchor_, native(stream).get(), index_);
}

void CudaDevice::time_events(bool enabled) {
  if (!enabled) {
    anchor_ = nullptr;
    return;
  }
  bind();
  if (clock_ == nullptr) {
    clock_ = std::make_shared<CudaStream>("clock", highest_priority_, index_);
  }
  anchor_ = std::make_shared<ClockAnchor>(events_, clock_->get(), index_);
}

void CudaDevice::add_squared_norm(const float* values, std::size_t numel, double* sum,
                                  device::Stream& stream) {
  CudaStream& own = native(stream);
  if (own.norm_partials == nullptr) {
    // The memory may have had another owner on the compute stream just before, so this stream waits
    // for it.
    own.norm_partials = pool_->allocate(kNormPartials * sizeof(double), "partial sums of norms");
    wait(stream, *record(*compute_));
  }
  check(cuda::add_squared_norm(values, numel, sum, own.norm_partials->as<double>(), launch(stream)),
        "add_squared_norm", index_);
}

}  // namespace

device::DevicePtr open_cuda_device(int index) {
  return std::make_shared<CudaDevice>(index);
}

}  // namespace acc::cuda
