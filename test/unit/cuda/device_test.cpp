// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "gpu.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <thread>

using namespace acc;
using namespace acc::device;
using acc::test::contains;
using acc::test::OnDevice;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::byte> bytes_of(Device& device, const Memory& memory) {
  std::vector<std::byte> bytes(memory.nbytes());
  device.copy(bytes.data(), memory.data(), bytes.size(), device.compute());
  device.synchronize();
  return bytes;
}

bool all_zero(const std::vector<std::byte>& bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

std::int64_t held_for(const MemoryMetrics& figures, const std::string& what) {
  for (const auto& holder : figures.holders) {
    if (holder.what == what) {
      return holder.nbytes;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("a GPU describes itself") {
  const auto [gpu, backend] = test::open_gpu();
  CHECK(gpu->kind() == settings::Device::cuda);
  CHECK(gpu->index() == 0);
  CHECK(gpu->describe().starts_with("cuda:0 ("));
  CHECK(gpu->hardware_id().starts_with("GPU-"));
  CHECK(gpu->hardware_id().size() == 40);
  REQUIRE(backend != nullptr);
  std::set<std::string> ids;
  for (int i = 0; i < backend->device_count(); ++i) {
    ids.insert(backend->open(i)->hardware_id());
  }
  CHECK(ids.size() == static_cast<std::size_t>(backend->device_count()));
}

TEST_CASE("memory is zero-filled, also when it was used before") {
  const auto gpu = test::open_gpu().device;
  for (const std::size_t nbytes : {std::size_t{0}, std::size_t{1}, std::size_t{777}, 3 * kMiB}) {
    CAPTURE(nbytes);
    const std::vector<std::byte> ones(nbytes, std::byte{1});
    for (int round = 0; round < 2; ++round) {
      const MemoryPtr memory = gpu->allocate(nbytes, "test");
      CHECK(memory->nbytes() == nbytes);
      CHECK(reinterpret_cast<std::uintptr_t>(memory->data()) % 256 == 0);
      CHECK(all_zero(bytes_of(*gpu, *memory)));
      gpu->copy(memory->data(), ones.data(), nbytes, gpu->compute());
      gpu->synchronize();

      const MemoryPtr host = gpu->allocate_host(nbytes, "test");
      CHECK(std::all_of(host->data(), host->data() + nbytes,
                        [](std::byte byte) { return byte == std::byte{0}; }));
      std::fill_n(host->data(), nbytes, std::byte{1});
    }
  }
}

TEST_CASE(
    "memory that is released while the compute stream reads it is not overwritten too early") {
  const auto gpu = test::open_gpu().device;
  const std::vector<std::byte> ones(kMiB, std::byte{1});
  const MemoryPtr target = gpu->allocate(kMiB, "target");
  MemoryPtr source = gpu->allocate(kMiB, "source");
  gpu->copy(source->data(), ones.data(), ones.size(), gpu->compute());
  gpu->copy(target->data(), source->data(), kMiB, gpu->compute());
  source = nullptr;
  const MemoryPtr next = gpu->allocate(kMiB, "next");
  CHECK(bytes_of(*gpu, *target) == ones);

  MemoryPtr host = gpu->allocate_host(kMiB, "host");
  std::fill_n(host->data(), kMiB, std::byte{2});
  gpu->copy(target->data(), host->data(), kMiB, gpu->compute());
  host = nullptr;
  const MemoryPtr next_host = gpu->allocate_host(kMiB, "host");
  CHECK(bytes_of(*gpu, *target) == std::vector<std::byte>(kMiB, std::byte{2}));
}

TEST_CASE("page-locked memory is not in forked processes, and too much of it is refused") {
  const auto gpu = test::open_gpu().device;
  const std::size_t nbytes = 200 * kMiB + 3;
  const MemoryPtr host = gpu->allocate_host(nbytes, "offloaded weights");
  CHECK(all_zero({host->data(), host->data() + nbytes}));
  std::fill_n(host->data(), nbytes, std::byte{1});

  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::prctl(PR_SET_DUMPABLE, 0);  // no core file
    ::_exit(static_cast<int>(*static_cast<volatile std::byte*>(host->data() + nbytes / 2)));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);

  const std::string message =
      acc::test::error_of([&] { gpu->allocate_host(std::size_t{1} << 50, "offloaded gradients"); });
  CAPTURE(message);
  CHECK(contains(message, "of page-locked host memory for offloaded gradients"));
  CHECK(contains(message, "the machine is short of memory"));
}

TEST_CASE("memory statistics list bytes per purpose") {
  const auto gpu = test::open_gpu().device;
  const MemoryMetrics before = gpu->memory();
  MemoryPtr large = gpu->allocate(3 * kMiB, "gathered weights");
  const MemoryPtr small = gpu->allocate(1000, "norms");
  gpu->account(5 * kMiB, "NCCL");
  MemoryMetrics figures = gpu->memory();
  CHECK(figures.allocated - before.allocated == 8 * static_cast<std::int64_t>(kMiB) + 1000);
  CHECK(held_for(figures, "gathered weights") == 3 * static_cast<std::int64_t>(kMiB));
  CHECK(held_for(figures, "norms") == 1000);
  CHECK(figures.holders.front().what == "NCCL");
  CHECK(figures.reserved >= figures.allocated);

  large = nullptr;
  gpu->account(-5 * static_cast<std::int64_t>(kMiB), "NCCL");
  figures = gpu->memory();
  CHECK(figures.allocated - before.allocated == 1000);
  CHECK(figures.peak_allocated >= 8 * static_cast<std::int64_t>(kMiB) + 1000);
  CHECK(figures.reserved >= 3 * static_cast<std::int64_t>(kMiB));
  CHECK(held_for(figures, "NCCL") == 0);

  const MemoryPtr host = gpu->allocate_host(2 * kMiB, "offloaded weights");
  CHECK(gpu->memory().host_allocated == 2 * static_cast<std::int64_t>(kMiB));
}

TEST_CASE("an out-of-memory error lists bytes per purpose, after the cache was released") {
  const auto gpu = test::open_gpu().device;
  const MemoryPtr moments = gpu->allocate(40 * kMiB, "optimizer moments");
  gpu->allocate(60 * kMiB, "gone");
  CHECK(gpu->memory().reserved >= static_cast<std::int64_t>(100 * kMiB));
  const std::string message =
      acc::test::error_of([&] { gpu->allocate(std::size_t{1} << 50, "gathered weights"); });
  CAPTURE(message);
  CHECK(
      message.starts_with("out_of_memory: cuda:0: out of memory (OOM): 1048576.0 GiB for gathered "
                          "weights do not fit"));
  CHECK(contains(message, " GiB are free"));
  CHECK(contains(message, "this rank holds 40.0 MiB of optimizer moments"));
  CHECK(contains(message, "cached and unused"));
  CHECK(gpu->memory().reserved < static_cast<std::int64_t>(100 * kMiB));
  CHECK(all_zero(bytes_of(*gpu, *gpu->allocate(kMiB, "afterwards"))));
}

TEST_CASE("copies between device, page-locked and ordinary host memory") {
  const auto gpu = test::open_gpu().device;
  const auto values = test::random_values(100'001, 1);
  const std::size_t nbytes = values.size() * sizeof(float);
  const MemoryPtr host = gpu->allocate_host(nbytes, "host");
  const MemoryPtr first = gpu->allocate(nbytes, "first");
  const MemoryPtr second = gpu->allocate(nbytes, "second");
  std::ranges::copy(values, host->as<float>());
  std::vector<float> back(values.size());
  gpu->pin(back.data(), nbytes);
  gpu->copy(first->data(), host->data(), nbytes, gpu->compute());
  gpu->copy(second->data(), first->data(), nbytes, gpu->compute());
  gpu->copy(second->data(), second->data(), nbytes, gpu->compute());
  gpu->zero(second->data() + 40, 80, gpu->compute());
  gpu->copy(back.data(), second->data(), nbytes, gpu->compute());
  gpu->synchronize();
  gpu->unpin(back.data());
  auto expected = values;
  std::fill_n(expected.begin() + 10, 20, 0.0F);
  CHECK(test::same_bits(back, expected));
}

TEST_CASE("an event orders one stream after another") {
  const auto gpu = test::open_gpu().device;
  const std::size_t numel = 3 * kMiB / sizeof(float);
  const OnDevice<float> values(*gpu, std::vector<float>(numel, 1.0F));
  const StreamPtr gather = gpu->make_stream("gather");
  CHECK(gather->name() == "gather");
  CHECK(gather->native() != nullptr);
  for (int round = 0; round < 8; ++round) {
    gpu->wait(*gather, *gpu->record(gpu->compute()));
    gpu->add_scaled(values.data(), DType::float32, values.data(), numel, 3.0F, false, *gather);
    gpu->wait(gpu->compute(), *gpu->record(*gather));
    gpu->add_scaled(values.data(), DType::float32, values.data(), numel, -0.5F, true,
                    gpu->compute());
  }
  float expected = 1.0F;
  for (int round = 0; round < 8; ++round) {
    expected = 3.0F * expected - 1.5F * expected;
  }
  CHECK(test::same_bits(values.values(), std::vector<float>(numel, expected)));
}

TEST_CASE("an event gives its time in the host's clock") {
  const auto gpu = test::open_gpu().device;
  const auto now = [] {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  const EventPtr untimed = gpu->record(gpu->compute());
  untimed->synchronize();
  CHECK_THROWS_AS((void)untimed->microseconds(), Error);

  const double start = now();
  gpu->time_events(true);
  const OnDevice<float> values(*gpu, std::vector<float>(kMiB, 1.0F));
  const EventPtr first = gpu->record(gpu->compute());
  gpu->zero(values.data(), kMiB, gpu->compute());
  const EventPtr second = gpu->record(gpu->compute());
  second->synchronize();
  const double end = now();
  CHECK(first->done());
  CHECK(second->done());
  // Both clocks are read within one round trip to the GPU.
  constexpr double kSlack = 5000.0;
  CHECK(first->microseconds() >= start - kSlack);
  CHECK(first->microseconds() <= second->microseconds());
  CHECK(second->microseconds() <= end + kSlack);
  gpu->time_events(false);
  CHECK_THROWS_AS((void)gpu->record(gpu->compute())->microseconds(), Error);
}

TEST_CASE("memory may outlive its device, and each thread may have its own device") {
  MemoryPtr survivor;
  {
    const auto gpu = test::open_gpu().device;
    survivor = gpu->allocate(kMiB, "survivor");
  }
  survivor = nullptr;

  const auto [gpu, backend] = test::open_gpu();
  const int other = backend->device_count() - 1;
  const OnDevice<float> here(*gpu, {1.0F, 2.0F, 3.0F});
  std::vector<float> there;
  std::thread([&, backend = backend] {
    const DevicePtr second = backend->open(other);
    const OnDevice<float> values(*second, {4.0F, 5.0F});
    second->add_scaled(values.data(), DType::float32, values.data(), 2, 2.0F, false,
                       second->compute());
    there = values.values();
  }).join();
  CHECK(there == std::vector{8.0F, 10.0F});
  CHECK(here.values() == std::vector{1.0F, 2.0F, 3.0F});
}

TEST_CASE("GPUs that do not exist") {
  const auto [gpu, backend] = test::open_gpu();
  const int count = backend->device_count();
  const std::string number = std::to_string(count);
  for (const int index : {-1, count, count + 7}) {
    CAPTURE(index);
    const std::string message =
        acc::test::error_of([&, backend = backend] { backend->open(index); });
    CHECK(message.starts_with("device: device cuda: there is no GPU " + std::to_string(index)));
    CHECK(contains(message, ": " + number + (count == 1 ? " is visible" : " are visible")));
  }

  settings::RuntimeSettings settings;
  settings.device = settings::Device::cuda;
  settings.identity.local_rank = 0;
  settings.identity.local_world_size = count + 1;
  const std::string message = acc::test::error_of([&] { open_device(settings); });
  CAPTURE(message);
  CHECK(message.starts_with("device: device cuda: " + std::to_string(count + 1) + " workers"));
  CHECK(contains(message, "GPUs: " + number));
  CHECK(contains(message, "ACC_SHARE_GPUS=1"));
  settings.share_gpus = true;
  settings.identity.local_rank = count;
  CHECK(open_device(settings).device->index() == 0);
}
