#include "device/cpu_device.hpp"

#include "acc/base/error.hpp"
#include "device/host_clock.hpp"
#include "device/memory_ledger.hpp"
#include "device/thread_team.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace acc::device {
namespace {

constexpr std::size_t kAlignment = 256;

Error no_memory(std::size_t nbytes, std::string_view what) {
  return {Errc::out_of_memory, fmt::format("cpu: no memory for {} bytes of {}", nbytes, what)};
}

class HostMemory final : public Memory {
 public:
  HostMemory(std::size_t nbytes, std::string what, std::shared_ptr<MemoryLedger> ledger)
      : what_(std::move(what)), ledger_(std::move(ledger)) {
    const std::size_t rounded = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, std::max(rounded, kAlignment)));
    if (data_ == nullptr) {
      throw no_memory(nbytes, what_);
    }
    std::memset(data_, 0, rounded);
    nbytes_ = nbytes;
    ledger_->add(static_cast<std::int64_t>(nbytes_), what_);
  }
  ~HostMemory() override {
    ledger_->add(-static_cast<std::int64_t>(nbytes_), what_);
    std::free(data_);
  }

 private:
  std::string what_;
  std::shared_ptr<MemoryLedger> ledger_;
};

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

void cast_from_float(const float* from, void* to, DType dtype, std::size_t numel) {
  const auto& table = kernels::kernels();
  switch (dtype) {
    case DType::float32: std::memcpy(to, from, numel * sizeof(float)); return;
    case DType::bfloat16: table.f32_to_bf16(from, static_cast<std::uint16_t*>(to), numel); return;
    case DType::float16: table.f32_to_f16(from, static_cast<std::uint16_t*>(to), numel); return;
    case DType::float64:
    case DType::byte: break;
  }
  throw Error(Errc::internal, fmt::format("no cast from float32 to {}", to_string(dtype)));
}

void cast_to_float(const void* from, DType dtype, float* to, std::size_t numel) {
  const auto& table = kernels::kernels();
  switch (dtype) {
    case DType::float32: std::memcpy(to, from, numel * sizeof(float)); return;
    case DType::bfloat16:
      table.bf16_to_f32(static_cast<const std::uint16_t*>(from), to, numel);
      return;
    case DType::float16:
      table.f16_to_f32(static_cast<const std::uint16_t*>(from), to, numel);
      return;
    case DType::float64:
    case DType::byte: break;
  }
  throw Error(Errc::internal, fmt::format("no cast from {} to float32", to_string(dtype)));
}

/// Elements that a thread takes at a time.
constexpr std::int64_t kTile = 1 << 16;

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

  plugins::Device kind() const noexcept override { return plugins::Device::cpu; }
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
  MemoryFigures memory() const override { return ledger_->figures(); }

  Stream& compute() noexcept override { return compute_; }
  StreamPtr make_stream(std::string name) override {
    return std::make_shared<CpuStream>(std::move(name));
  }
  EventPtr record(Stream&) override { return std::make_shared<CpuEvent>(); }
  void wait(Stream&, const Event&) override {}
  void synchronize() override {}
  void time_events(bool) override {}

  void copy(void* to, const void* from, std::size_t nbytes, Stream&) override {
    if (to != from) {
      std::memcpy(to, from, nbytes);
    }
  }
  void zero(void* to, std::size_t nbytes, Stream&) override { std::memset(to, 0, nbytes); }
  void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
            Stream&) override {
    if (from_dtype == to_dtype) {
      std::memcpy(to, from, numel * nbytes_of(to_dtype));
    } else if (from_dtype == DType::float32) {
      cast_from_float(static_cast<const float*>(from), to, to_dtype, numel);
    } else if (to_dtype == DType::float32) {
      cast_to_float(from, from_dtype, static_cast<float*>(to), numel);
    } else {
      throw Error(Errc::internal,
                  fmt::format("no cast from {} to {}", to_string(from_dtype), to_string(to_dtype)));
    }
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
    if (team_.size() == 1) {
      *sum += kernels::kernels().squared_norm(values, numel);
      return;
    }
    const auto tiles = tiles_of(std::vector<UpdateRange>{{0, static_cast<std::int64_t>(numel)}});
    std::vector<double> sums(tiles.size());
    team_.run(tiles.size(), [&](std::size_t i) {
      sums[i] = kernels::kernels().squared_norm(values + tiles[i].begin,
                                                static_cast<std::size_t>(tiles[i].numel));
    });
    *sum = std::accumulate(sums.begin(), sums.end(), *sum);
  }
  void scale_clamped(float* values, std::size_t numel, float scale, float limit, Stream&) override {
    const UpdateRange all{0, static_cast<std::int64_t>(numel)};
    for_each_tile({&all, 1}, [&](const UpdateRange& range) {
      kernels::kernels().scale_clamped(values + range.begin, scale, limit,
                                       static_cast<std::size_t>(range.numel));
    });
  }
  void adamw(const kernels::AdamWCoefficients& coefficients, const UpdateArrays& arrays,
             std::span<const UpdateRange> ranges, Stream&) override {
    for_each_tile(ranges, [&](const UpdateRange& range) {
      kernels::AdamWCoefficients own = coefficients;
      own.decay = range.decays ? coefficients.decay : 1.0F;
      const Part at{arrays, range};
      kernels::kernels().adamw(own, at.weights, at.grads, at.first, at.second, at.rounded,
                               at.numel);
    });
  }
  void sgd(const kernels::SgdCoefficients& coefficients, const UpdateArrays& arrays,
           std::span<const UpdateRange> ranges, Stream&) override {
    for_each_tile(ranges, [&](const UpdateRange& range) {
      kernels::SgdCoefficients own = coefficients;
      own.weight_decay = range.decays ? coefficients.weight_decay : 0.0F;
      const Part at{arrays, range};
      kernels::kernels().sgd(own, at.weights, at.grads, at.first, at.rounded, at.numel);
    });
  }

 private:
  /// The arrays from where a range begins.
  struct Part {
    Part(const UpdateArrays& arrays, const UpdateRange& range)
        : weights(arrays.weights + range.begin),
          grads(arrays.grads + range.begin),
          first(arrays.first == nullptr ? nullptr : arrays.first + range.begin),
          second(arrays.second == nullptr ? nullptr : arrays.second + range.begin),
          rounded(arrays.rounded == nullptr
                      ? nullptr
                      : static_cast<std::uint16_t*>(arrays.rounded) + range.begin),
          numel(static_cast<std::size_t>(range.numel)) {}
    float* weights;
    const float* grads;
    float* first;
    float* second;
    std::uint16_t* rounded;
    std::size_t numel;
  };

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
