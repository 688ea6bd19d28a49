// SPDX-License-Identifier: Apache-2.0
// gpu_probe LOCAL_RANK LOCAL_WORLD_SIZE: opens the GPU of that worker and prints its description,
// or the error.
#include "acc/base/error.hpp"
#include "device/open_device.hpp"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  acc::settings::RuntimeSettings settings;
  settings.device = acc::settings::Device::cuda;
  settings.identity.local_rank = argc > 1 ? std::atoi(argv[1]) : 0;
  settings.identity.local_world_size = argc > 2 ? std::atoi(argv[2]) : 1;
  try {
    const auto device = acc::device::open_device(settings).device;
    const auto memory = device->allocate(std::size_t{1} << 20, "probe");
    device->synchronize();
    std::printf("%s\n", device->describe().c_str());
    return 0;
  } catch (const acc::Error& error) {
    std::printf("%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    return acc::exit_status(error);
  }
}
