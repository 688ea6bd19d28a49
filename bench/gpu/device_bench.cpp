// SPDX-License-Identifier: Apache-2.0
// Measures the loops of a GPU: device_bench [numel] [repetitions] Prints one line of JSON per loop.
// `of_copy_rate` is the rate of bytes read and written over that of a device-to-device copy in the
// same run. Exit status 77 if there is no GPU.

#include "../timing.hpp"
#include "acc/base/error.hpp"
#include "device/open_device.hpp"
#include "optim/update.hpp"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

using namespace acc;
using namespace acc::device;

namespace {

class Bench {
 public:
  Bench(Device& device, std::size_t numel, int repetitions)
      : device_(device), numel_(numel), repetitions_(repetitions) {
    device_.time_events(true);
  }

  /// Queues `work` repeatedly and prints the median time. bytes: bytes per element that one run
  /// reads and writes.
  void measure(const char* what, double bytes, const std::function<void()>& work) {
    constexpr int kWarmUps = 3;
    std::vector<EventPtr> events;
    for (int run = 0; run < kWarmUps + repetitions_; ++run) {
      if (run >= kWarmUps) {
        events.push_back(device_.record(device_.compute()));
      }
      work();
    }
    events.push_back(device_.record(device_.compute()));
    device_.synchronize();
    print(what, bytes * static_cast<double>(numel_), median_seconds(events));
  }

 private:
  static double median_seconds(const std::vector<EventPtr>& events) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i + 1 < events.size(); ++i) {
      seconds.push_back((events[i + 1]->microseconds() - events[i]->microseconds()) * 1e-6);
    }
    return bench::median(seconds);
  }

  // The copy is measured first, as reference.
  void print(const char* what, double nbytes, double seconds) {
    const double rate = nbytes / seconds;
    copy_rate_ = copy_rate_ == 0.0 ? rate : copy_rate_;
    std::printf(
        "{\"impl\": \"acc\", \"device\": \"%s\", \"what\": \"%s\", \"numel\": %zu, "
        "\"median_s\": %.6f, \"gb_per_s\": %.1f, \"of_copy_rate\": %.3f}\n",
        device_.describe().c_str(), what, numel_, seconds, rate * 1e-9, rate / copy_rate_);
    std::fflush(stdout);
  }

  Device& device_;
  std::size_t numel_;
  int repetitions_;
  double copy_rate_ = 0.0;
};

void measure_loops(Bench& bench, Device& device, const Memory& first, const Memory& second,
                   std::size_t numel) {
  Stream& stream = device.compute();
  bench.measure("copy", 8,
                [&] { device.copy(second.data(), first.data(), numel * sizeof(float), stream); });
  bench.measure("cast float32 to bfloat16", 6, [&] {
    device.cast(first.data(), DType::float32, second.data(), DType::bfloat16, numel, stream);
  });
  bench.measure("cast bfloat16 to float32", 6, [&] {
    device.cast(second.data(), DType::bfloat16, first.data(), DType::float32, numel, stream);
  });
  bench.measure("cast float32 to float16", 6, [&] {
    device.cast(first.data(), DType::float32, second.data(), DType::float16, numel, stream);
  });
  bench.measure("add_scaled bfloat16 to float32", 10, [&] {
    device.add_scaled(second.data(), DType::bfloat16, first.as<float>(), numel, 0.5F, true, stream);
  });
  const MemoryPtr sum = device.allocate(sizeof(double), "sum");
  bench.measure("squared norm", 4, [&] {
    device.add_squared_norm(first.as<float>(), numel, sum->as<double>(), stream);
  });
}

void measure_updates(Bench& bench, Device& device, const Memory& weights, const Memory& grads,
                     std::size_t numel) {
  const std::size_t nbytes = numel * sizeof(float);
  const MemoryPtr first = device.allocate(nbytes, "first moments");
  const MemoryPtr second = device.allocate(nbytes, "second moments");
  const MemoryPtr rounded = device.allocate(nbytes / 2, "rounded weights");
  UpdateArrays arrays{.weights = weights.data(),
                      .grads = grads.as<float>(),
                      .first = first->data(),
                      .second = second->data(),
                      .rounded = nullptr};
  const std::vector<UpdateRange> whole{{.begin = 0, .numel = static_cast<std::int64_t>(numel)}};
  const AdamW settings{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  const auto adamw =
      optim::Rule(optim::named(settings)).step(settings.lr, settings.weight_decay, 1, 1.0);
  bench.measure("AdamW", 28, [&] { device.update(adamw, arrays, whole, device.compute()); });
  arrays.rounded = rounded->data();
  bench.measure("AdamW with bfloat16 copy", 30,
                [&] { device.update(adamw, arrays, whole, device.compute()); });

  std::vector<UpdateRange> many;  // like the parameters of a unit: most are large, some small
  const auto part = static_cast<std::int64_t>(numel / 48 / 16 * 16);
  for (std::int64_t i = 0; i < 48; ++i) {
    many.push_back({.begin = i * part, .numel = i % 4 == 0 ? 768 : part, .decays = i % 4 != 0});
  }
  const double share =
      (36.0 * static_cast<double>(part) + 12.0 * 768.0) / static_cast<double>(numel);
  bench.measure("AdamW with bfloat16 copy, 48 ranges", 30 * share,
                [&] { device.update(adamw, arrays, many, device.compute()); });
}

// Fills arrays with ordinary values, because a GPU computes divisions and roots of zeros on a
// slower path.
void fill(Device& device, const Memory& memory, std::size_t numel) {
  std::vector<float> values(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    values[i] = static_cast<float>(i % 1009 + 1) * 1e-4F;
  }
  device.copy(memory.data(), values.data(), numel * sizeof(float), device.compute());
  device.synchronize();
}

int run(std::size_t numel, int repetitions) {
  settings::RuntimeSettings settings;
  settings.device = settings::Device::cuda;
  const DevicePtr device = open_device(settings).device;
  if (device->describe().find("stand-in") != std::string::npos) {
    std::fprintf(stderr, "device_bench: %s: only the speed of a GPU is measured\n",
                 device->describe().c_str());
    return 2;
  }
  const MemoryPtr first = device->allocate(numel * sizeof(float), "bench");
  const MemoryPtr second = device->allocate(numel * sizeof(float), "bench");
  fill(*device, *first, numel);
  fill(*device, *second, numel);
  Bench bench(*device, numel, repetitions);
  measure_loops(bench, *device, *first, *second, numel);
  fill(*device, *first, numel);
  fill(*device, *second, numel);
  measure_updates(bench, *device, *first, *second, numel);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t numel = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{256} << 20;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 20;
  if (numel < 100'000 || repetitions < 1) {
    std::fprintf(stderr, "usage: device_bench [numel, 100000 or more] [repetitions]\n");
    return 2;
  }
  try {
    return run(numel, repetitions);
  } catch (const Error& error) {
    std::fprintf(stderr, "device_bench: %s\n", error.what());
    return error.code() == Errc::device ? 77 : exit_status(error);
  }
}
