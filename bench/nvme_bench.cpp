// SPDX-License-Identifier: Apache-2.0
// Speed of the AdamW update with its state in files: nvme_bench FOLDER [params] [repetitions]
//
// Prints one line of JSON: seconds per update in memory and with master weights and moments in a
// file (24 bytes per parameter, half read, half written; gradients and 16-bit weights in memory),
// the medians of updates made in turn.

#include "device/cpu_device.hpp"
#include "swap/swap_device.hpp"
#include "timing.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using acc::bench::median;
using acc::bench::seconds_of;
using acc::device::MemoryPtr;

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: nvme_bench FOLDER [params] [repetitions]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const std::int64_t numel = argc > 2 ? std::atoll(argv[2]) : 40'000'000;
  const int repetitions = argc > 3 ? std::atoi(argv[3]) : 5;
  const auto device = std::make_shared<acc::swap::SwapDevice>(acc::device::open_cpu_device(),
                                                              acc::settings::NvmeSettings{});
  auto& stream = device->compute();
  const auto count = static_cast<std::size_t>(numel);
  const auto in_memory = [&](std::size_t size) { return device->allocate(count * size, "bench"); };
  const MemoryPtr grads = in_memory(4);
  std::fill_n(grads->as<float>(), count, 1e-3F);
  const MemoryPtr rounded = in_memory(2);
  const std::vector<acc::device::UpdateRange> ranges = {{0, numel, true}};
  const acc::kernels::UpdateStep step = acc::kernels::AdamWStep{.grad_scale = 1.0F,
                                                                .decay = 0.999F,
                                                                .beta1_complement = 0.1F,
                                                                .beta2 = 0.999F,
                                                                .beta2_complement = 0.001F,
                                                                .sqrt_bias_correction2 = 0.5F,
                                                                .eps = 1e-8F,
                                                                .step_size = 1e-3F};
  const auto make_step = [&](const std::vector<MemoryPtr>& state) {
    device->update(step,
                   {.weights = state[0]->data(),
                    .grads = grads->as<float>(),
                    .first = state[1]->data(),
                    .second = state[2]->data(),
                    .rounded = rounded->data()},
                   ranges, stream);
    device->synchronize();
  };
  std::vector<MemoryPtr> here;
  std::vector<MemoryPtr> on_disk;
  for (int i = 0; i < 3; ++i) {
    here.push_back(in_memory(4));
    on_disk.push_back(device->allocate_in_file(count * 4, folder, "FOLDER"));
  }
  make_step(here);
  make_step(on_disk);  // the first write of allocated blocks changes the file system's records
  std::vector<double> in_memory_s;
  std::vector<double> on_disk_s;
  const std::uint64_t before = device->read_nbytes() + device->written_nbytes();
  for (int i = 0; i < repetitions; ++i) {
    in_memory_s.push_back(seconds_of([&] { make_step(here); }));
    on_disk_s.push_back(seconds_of([&] { make_step(on_disk); }));
  }
  const std::uint64_t moved = device->read_nbytes() + device->written_nbytes() - before;
  std::printf(
      "{\"params\": %lld, \"engine\": \"%s\", \"memory_s\": %.4f, \"nvme_s\": %.4f, "
      "\"bytes_per_step\": %.0f, \"buffer_bytes\": %lld}\n",
      static_cast<long long>(numel), device->engine(), median(in_memory_s), median(on_disk_s),
      static_cast<double>(moved) / repetitions, static_cast<long long>(device->buffer_nbytes()));
  return 0;
}
