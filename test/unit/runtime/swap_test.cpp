// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "device/cpu_device.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "swap/swap_device.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

// Memory in files (offload to NVMe), without a model.
namespace {

namespace fs = std::filesystem;
using acc::DType;
using acc::device::UpdateArrays;
using acc::device::UpdateRange;
using acc::settings::NvmeSettings;
using acc::swap::kPage;
using acc::swap::SwapDevice;
using acc::swap::SwapFile;
using acc::swap::Transfer;
using acc::swap::Transfers;
using acc::test::error_of;
using acc::test::nameless_files;
using acc::test::TemporaryFolder;

/// Small blocks and buffers, so that little data needs many.
constexpr NvmeSettings kSmall{.block_size = 8192, .queue_depth = 3};

/// Memory whose beginning is that of a page.
struct PageBuffer {
  explicit PageBuffer(std::size_t size)
      : memory(std::aligned_alloc(kPage, size), &std::free), nbytes(size) {
    std::memset(memory.get(), 0, size);
  }
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(memory.get()), nbytes};
  }
  std::unique_ptr<void, void (*)(void*)> memory;
  std::size_t nbytes;
};

/// The engines that this system permits.
std::vector<std::unique_ptr<Transfers>> engines(const NvmeSettings& settings,
                                                std::span<std::byte> buffer) {
  std::vector<std::unique_ptr<Transfers>> all;
  std::string reason;
  const std::vector<std::span<std::byte>> buffers = {buffer};
  if (auto uring = acc::swap::make_uring_transfers(settings, buffers, reason)) {
    all.push_back(std::move(uring));
  } else {
    MESSAGE("no io_uring: " << reason);
  }
  all.push_back(acc::swap::make_thread_transfers(settings));
  return all;
}

std::shared_ptr<SwapDevice> open_swap(const NvmeSettings& settings = kSmall) {
  return std::make_shared<SwapDevice>(acc::device::open_cpu_device(), settings);
}

std::vector<float> waves(std::size_t numel, float factor) {
  std::vector<float> values(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    values[i] = std::sin(factor * static_cast<float>(i));
  }
  return values;
}

}  // namespace

TEST_CASE("every engine moves bytes, with every setting of aio") {
  const TemporaryFolder folder;
  const std::size_t nbytes = 21 * kPage;
  for (const NvmeSettings& settings :
       {NvmeSettings{}, kSmall, NvmeSettings{.block_size = 1, .queue_depth = 1},
        NvmeSettings{.block_size = 4096, .queue_depth = 4, .single_submit = true},
        NvmeSettings{.block_size = 4096, .queue_depth = 4, .overlap_events = false},
        NvmeSettings{.block_size = 5000, .queue_depth = 2, .intra_op_parallelism = 5}}) {
    const PageBuffer buffer(2 * nbytes);
    for (const auto& engine : engines(settings, buffer.bytes())) {
      CAPTURE(engine->name());
      SwapFile file(folder.path().string(), "nvme_path");
      CHECK(file.allocate(kPage) == 0);
      const std::uint64_t offset = file.allocate(nbytes);
      CHECK(file.nbytes() == kPage + nbytes);
      std::byte* const from = buffer.bytes().data();
      std::byte* const to = from + nbytes;
      std::memset(to, 7, nbytes);
      Transfer reading;
      engine->start(reading, false, file.descriptor(), offset, to, nbytes, 0);
      engine->wait(reading);
      CHECK(reading.problem.empty());
      CHECK(std::all_of(to, to + nbytes, [](std::byte each) { return each == std::byte{0}; }));
      for (std::size_t i = 0; i < nbytes; ++i) {
        from[i] = static_cast<std::byte>(i * 31 / 7);
      }
      Transfer writing;
      engine->start(writing, true, file.descriptor(), offset, from, nbytes, 0);
      engine->wait(writing);
      CHECK(engine->done(writing));
      Transfer again;
      engine->start(again, false, file.descriptor(), offset, to, nbytes, 0);
      engine->wait(again);
      CHECK(writing.problem + again.problem == "");
      CHECK(std::memcmp(from, to, nbytes) == 0);
    }
  }
}

TEST_CASE("failed transfers name what failed") {
  const TemporaryFolder folder;
  const std::string path = folder.write("short", std::string(2 * kPage + 100, 'x'));
  const PageBuffer buffer(8 * kPage);
  for (const auto& engine : engines({.block_size = 2 * kPage}, buffer.bytes())) {
    CAPTURE(engine->name());
    const auto problem_of = [&](const char* name, bool writes) {
      const int file = ::open(name, O_RDWR | O_CLOEXEC);
      REQUIRE(file >= 0);
      Transfer transfer;
      engine->start(transfer, writes, file, 0, buffer.bytes().data(), 8 * kPage, 0);
      engine->wait(transfer);
      ::close(file);
      return transfer.problem;
    };
    std::set<std::string> of_requests;  // threads make the four at once
    for (std::size_t page = 0; page < 8; page += 2) {
      of_requests.insert("cannot write 8192 bytes at offset " + std::to_string(page * kPage) +
                         ": No space left on device (ENOSPC)");
    }
    CHECK(of_requests.contains(problem_of("/dev/full", true)));
    CHECK(problem_of(path.c_str(), false).find("only ") != std::string::npos);
    // Address 0 of this process is not mapped.
    CHECK(problem_of("/proc/self/mem", false).find("Input/output error (EIO)") !=
          std::string::npos);
  }
}

TEST_CASE("a request that was cut short is continued at a page") {
  acc::swap::Block block{.file = 1, .offset = 4 * kPage, .nbytes = 4 * kPage};
  std::string problem;
  CHECK(!acc::swap::end_request(block, -EINTR, problem));
  CHECK(!acc::swap::end_request(block, static_cast<std::int64_t>(kPage + 100), problem));
  CHECK(block.offset == 5 * kPage);
  CHECK(block.nbytes == 3 * kPage);
  CHECK(acc::swap::end_request(block, static_cast<std::int64_t>(3 * kPage), problem));
  CHECK(problem.empty());
  block.nbytes = 2 * kPage;
  CHECK(acc::swap::end_request(block, 100, problem));
  CHECK(problem.find("only 100 bytes") != std::string::npos);
}

TEST_CASE("a swap file is private, has no name, and holds its space") {
  for (const char* parent : {"/dev/shm", "/tmp"}) {  // a file system in memory may refuse O_DIRECT
    const std::string own = std::string(parent) + "/acc-swap-XXXXXX";
    std::string name = own;
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    {
      SwapFile file(name, "offload_param_nvme_path");
      file.allocate(64 * kPage);
      struct stat status {};
      REQUIRE(::fstat(file.descriptor(), &status) == 0);
      CHECK(status.st_nlink == 0);
      CHECK((status.st_mode & 0777U) == 0600);
      CHECK(status.st_blocks * 512 >= static_cast<std::int64_t>(64 * kPage));
      CHECK((::fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
      CHECK(fs::is_empty(name));
      // More than any disk has.
      const std::string error = error_of([&] { return file.allocate(std::size_t{1} << 54U); });
      CHECK(
          error.starts_with("config: offload to nvme: cannot reserve 18014398509481984 bytes in " +
                            name + " (offload_param_nvme_path)"));
      CHECK(error.find(" bytes are free") != std::string::npos);
      file.free(0, 64 * kPage);
      REQUIRE(::fstat(file.descriptor(), &status) == 0);
      CHECK(status.st_blocks * 512 < static_cast<std::int64_t>(64 * kPage));
    }
    fs::remove(name);
  }
  CHECK(error_of([] { return SwapFile("/nowhere/acc", "offload_optimizer_nvme_path").nbytes(); }) ==
        "config: offload to nvme: cannot make a file in /nowhere/acc "
        "(offload_optimizer_nvme_path): No such file or directory");
  // A file system without O_TMPFILE.
  CHECK(error_of([] { return SwapFile("/proc", "offload_optimizer_nvme_path").nbytes(); })
            .starts_with("config: offload to nvme: cannot make a file in /proc "
                         "(offload_optimizer_nvme_path): cannot create /proc/.acc-nvme-"));
}

TEST_CASE("copies, casts and zeros of any part of memory in a file") {
  const TemporaryFolder folder;
  const auto device = open_swap();
  auto& stream = device->compute();
  constexpr std::size_t kNumel = 300'001;  // more than three buffers
  const auto memory = device->allocate_in_file(kNumel * 4, folder.path().string(), "path");
  const auto other = device->allocate_in_file(kNumel * 4, folder.path().string(), "path");
  CHECK(!device->host_can_use(memory->data()));
  CHECK(!device->host_can_use(memory->data() + memory->nbytes() - 1));
  CHECK(device->file_nbytes() >= 2 * static_cast<std::int64_t>(kNumel) * 4);
  const std::vector<float> values = waves(kNumel, 0.37F);
  CHECK(device->host_can_use(values.data()));
  std::vector<float> expected(kNumel);  // the file's content; zeros at first
  std::vector<float> found(kNumel);
  const auto check = [&] {
    device->copy(found.data(), memory->data(), kNumel * 4, stream);
    CHECK(found == expected);
  };
  check();
  struct Part {
    std::size_t begin, numel;
  };
  for (const Part& part : {Part{0, kNumel}, Part{3, 5}, Part{1023, 2}, Part{1024, 1024},
                           Part{77, 99'000}, Part{kNumel - 1, 1}}) {
    CAPTURE(part.begin);
    device->copy(memory->data() + part.begin * 4, values.data() + kNumel - part.numel,
                 part.numel * 4, stream);
    std::copy_n(values.end() - static_cast<std::ptrdiff_t>(part.numel), part.numel,
                expected.begin() + static_cast<std::ptrdiff_t>(part.begin));
    check();
    device->copy(found.data(), memory->data() + part.begin * 4, part.numel * 4, stream);
    CHECK(std::equal(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(part.numel),
                     expected.begin() + static_cast<std::ptrdiff_t>(part.begin)));
  }
  double here = 0.5;
  double there = 0.5;
  device->add_squared_norm(expected.data(), kNumel, &here, stream);
  device->add_squared_norm(memory->as<float>(), kNumel, &there, stream);
  CHECK(here == there);
  for (const bool accumulate : {true, false}) {
    device->add_scaled(values.data(), DType::float32, memory->as<float>(), kNumel, 0.25F,
                       accumulate, stream);
    device->add_scaled(values.data(), DType::float32, expected.data(), kNumel, 0.25F, accumulate,
                       stream);
    check();
  }
  device->scale_clamped(memory->as<float>(), kNumel, 3.0F, 0.5F, stream);
  device->scale_clamped(expected.data(), kNumel, 3.0F, 0.5F, stream);
  check();
  device->zero(memory->data() + 4000, 300'000, stream);
  std::fill_n(expected.begin() + 1000, 75'000, 0.0F);
  check();
  device->copy(other->data(), memory->data(), kNumel * 4, stream);  // within the file
  device->copy(found.data(), other->data(), kNumel * 4, stream);
  CHECK(found == expected);

  std::vector<std::uint16_t> rounded(kNumel);
  std::vector<std::uint16_t> rounded_here(kNumel);
  acc::kernels::cast(expected.data(), DType::float32, rounded_here.data(), DType::bfloat16, kNumel);
  device->cast(memory->data(), DType::float32, rounded.data(), DType::bfloat16, kNumel, stream);
  CHECK(rounded == rounded_here);
  device->cast(memory->data(), DType::float32, other->data(), DType::bfloat16, kNumel, stream);
  std::fill(rounded.begin(), rounded.end(), std::uint16_t{0});
  device->copy(rounded.data(), other->data(), kNumel * 2, stream);
  CHECK(rounded == rounded_here);
  device->cast(other->data(), DType::bfloat16, memory->data(), DType::float32, kNumel, stream);
  acc::kernels::cast(rounded_here.data(), DType::bfloat16, expected.data(), DType::float32, kNumel);
  check();
}

TEST_CASE("updates in tiles are bit-equal to those in memory, whatever lies in a file") {
  const TemporaryFolder folder;
  constexpr std::size_t kNumel = 140'017;
  // Parameters with gaps, not in order; the second call meets the pages of the first.
  const std::vector<std::vector<UpdateRange>> calls = {
      {{50'000, 80'001, true}, {0, 3, true}, {4'100, 40'000, false}},
      {{3, 4'000, true}, {44'100, 5'900, false}, {130'016, 10'001, true}}};
  const auto grads = waves(kNumel, 0.11F);
  const acc::kernels::UpdateStep step = acc::kernels::AdamWStep{.grad_scale = 0.5F,
                                                                .decay = 0.99F,
                                                                .beta1_complement = 0.1F,
                                                                .beta2 = 0.9F,
                                                                .beta2_complement = 0.1F,
                                                                .sqrt_bias_correction2 = 0.7F,
                                                                .eps = 1e-8F,
                                                                .step_size = 0.1F};
  for (const bool stochastic : {false, true}) {
    for (unsigned in_file = 0; in_file < 16; ++in_file) {
      CAPTURE(in_file);
      const auto run = [&](const std::shared_ptr<SwapDevice>& device, unsigned places,
                           bool grads_in_file) {
        auto& stream = device->compute();
        const std::size_t sizes[] = {stochastic ? 2U : 4U, stochastic ? 2U : 4U,
                                     stochastic ? 2U : 4U, 2U};
        std::vector<acc::device::MemoryPtr> memory;
        for (unsigned i = 0; i < 4; ++i) {
          const std::size_t nbytes = kNumel * sizes[i];
          memory.push_back((places >> i & 1U) != 0
                               ? device->allocate_in_file(nbytes, folder.path().string(), "path")
                               : device->allocate(nbytes, "test"));
        }
        const auto grads_memory =
            grads_in_file ? device->allocate_in_file(kNumel * 4, folder.path().string(), "path")
                          : device->allocate(kNumel * 4, "test");
        device->copy(grads_memory->data(), grads.data(), kNumel * 4, stream);
        UpdateArrays arrays{.weights = memory[0]->data(),
                            .grads = grads_memory->as<float>(),
                            .first = memory[1]->data(),
                            .second = memory[2]->data(),
                            .rounded = memory[3]->data(),
                            .noise_key = 77,
                            .noise_first = 5};
        arrays.weight_dtype = stochastic ? DType::bfloat16 : DType::float32;
        arrays.moment_dtype = arrays.weight_dtype;
        arrays.stochastic = stochastic;
        for (int i = 0; i < 3; ++i) {
          for (const auto& ranges : calls) {
            device->update(step, arrays, ranges, stream);
          }
        }
        device->synchronize();
        std::vector<std::vector<std::byte>> result;
        for (unsigned i = 0; i < 4; ++i) {
          result.emplace_back(kNumel * sizes[i]);
          device->copy(result.back().data(), memory[i]->data(), result.back().size(), stream);
        }
        return result;
      };
      const auto device = open_swap();
      const auto expected = run(device, 0, false);
      CHECK(device->written_nbytes() == 0);
      CHECK(run(device, in_file, false) == expected);
      CHECK((device->written_nbytes() > 0) == (in_file != 0));
      CHECK(run(device, in_file, true) == expected);
    }
  }
}

TEST_CASE("after a failed transfer every use of the files fails with its reason") {
  const TemporaryFolder folder;
  const auto device = open_swap();
  const auto memory = device->allocate_in_file(1 << 20, folder.path().string(), "nvme_path");
  const auto files = nameless_files(folder.path());
  REQUIRE(files.size() == 1);
  REQUIRE(::truncate(files.front().c_str(), 1 << 19) == 0);
  std::vector<std::byte> bytes(1 << 20);
  const std::string error = error_of([&] {
    device->copy(bytes.data(), memory->data(), bytes.size(), device->compute());
    return 0;
  });
  CHECK(error.starts_with("device: offload to nvme: the file in " + folder.path().string() +
                          " (nvme_path): cannot read "));
  CHECK(error_of([&] {
          device->zero(memory->data(), 8, device->compute());
          return 0;
        }) == error);
}
