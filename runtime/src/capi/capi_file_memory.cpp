// SPDX-License-Identifier: Apache-2.0
// Memory in a file, in C.
#include "capi/capi.hpp"
#include "device/cpu_device.hpp"
#include "swap/swap_device.hpp"

#include <utility>
#include <vector>

struct acc_file_memory {
  std::shared_ptr<acc::swap::SwapDevice> device;
  acc::device::MemoryPtr memory;
  std::vector<acc::swap::SwapDevice::ReadingPtr> readings = {};  ///< under way
  acc::OwnProcess owner = {};
};

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;

std::int64_t at_least_one(std::int64_t value, const char* name) {
  if (value < 1) {
    throw Error(Errc::invalid_argument,
                std::string(name) + " is " + std::to_string(value) + ", expected at least 1");
  }
  return value;
}

acc::settings::NvmeSettings settings_of(const acc_file_memory_config& config) {
  const auto count = [](std::int32_t value, const char* name) {
    return static_cast<int>(at_least_one(value, name));
  };
  return {.block_size = at_least_one(config.block_size, "aio.block_size"),
          .queue_depth = count(config.queue_depth, "aio.queue_depth"),
          .intra_op_parallelism = count(config.intra_op_parallelism, "aio.intra_op_parallelism"),
          .single_submit = config.single_submit != 0,
          .overlap_events = config.overlap_events != 0,
          .buffer_count = config.buffer_count};
}

/// The address of an offset. Throws Error(invalid_argument) if the bytes are not in the memory.
std::byte* place_in(const acc_file_memory& memory, std::size_t offset, std::size_t nbytes) {
  const std::size_t whole = memory.memory->nbytes();
  if (offset > whole || nbytes > whole - offset) {
    throw Error(Errc::invalid_argument, "bytes [" + std::to_string(offset) + ", +" +
                                            std::to_string(nbytes) + ") of a memory of " +
                                            std::to_string(whole) + " bytes");
  }
  return memory.memory->data() + offset;
}

}  // namespace

acc_status acc_file_memory_create(const acc_file_memory_config* config,
                                  acc_file_memory** memory) noexcept {
  return guarded([&] {
    acc_file_memory*& result = required(memory, "memory");
    const auto c =
        config_of<acc_file_memory_config>(config, ACC_FILE_MEMORY_CONFIG_INITIALIZER, "config");
    auto device =
        std::make_shared<acc::swap::SwapDevice>(acc::device::open_cpu_device(), settings_of(c));
    auto place = device->allocate_in_file(c.nbytes, string_of(c.folder, "config.folder"),
                                          string_of(c.setting, "config.setting"));
    result = std::make_unique<acc_file_memory>(
                 acc_file_memory{.device = std::move(device), .memory = std::move(place)})
                 .release();
  });
}

void acc_file_memory_free(acc_file_memory* memory) noexcept {
  release(memory);
}

acc_status acc_file_memory_read(acc_file_memory* memory, size_t offset, void* to,
                                size_t nbytes) noexcept {
  return guarded([&] {
    const std::byte* const from = place_in(required(memory, "memory"), offset, nbytes);
    memory->device->copy(&required(static_cast<std::byte*>(to), "to"), from, nbytes,
                         memory->device->compute());
  });
}

acc_status acc_file_memory_start_reading(acc_file_memory* memory, size_t offset, void* to,
                                         size_t nbytes) noexcept {
  return guarded([&] {
    const std::byte* const from = place_in(required(memory, "memory"), offset, nbytes);
    auto reading =
        memory->device->start_reading(from, &required(static_cast<std::byte*>(to), "to"), nbytes);
    if (reading) {
      memory->readings.push_back(std::move(reading));
    }
  });
}

acc_status acc_file_memory_wait(acc_file_memory* memory) noexcept {
  return guarded([&] {
    const auto readings = std::exchange(required(memory, "memory").readings, {});
    for (const auto& each : readings) {
      each->wait();
    }
    if (readings.empty()) {
      memory->device->synchronize();
    }
  });
}

acc_status acc_file_memory_write(acc_file_memory* memory, size_t offset, const void* from,
                                 size_t nbytes) noexcept {
  return guarded([&] {
    std::byte* const to = place_in(required(memory, "memory"), offset, nbytes);
    memory->device->copy(to, &required(static_cast<const std::byte*>(from), "from"), nbytes,
                         memory->device->compute());
  });
}
