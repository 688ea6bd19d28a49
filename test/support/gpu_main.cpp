// SPDX-License-Identifier: Apache-2.0
// main of tests that run on a GPU, or on the stand-in that ACC_CUDA_BACKEND names. Without either
// the tests are skipped (exit status 77) and print the reason.
#define DOCTEST_CONFIG_IMPLEMENT
#include "acc/base/error.hpp"
#include "device/open_device.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (!context.shouldExit() && std::getenv("ACC_CUDA_BACKEND") == nullptr) {
    try {
      acc::settings::RuntimeSettings settings;
      settings.device = acc::settings::Device::cuda;
      acc::device::open_device(settings);
    } catch (const acc::Error& error) {
      std::printf("skipped: %s\n", error.what());
      return 77;
    }
  }
  return context.run();
}
