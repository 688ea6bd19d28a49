#include "device/open_device.hpp"

#include "acc/base/error.hpp"
#include "device/cpu_device.hpp"

namespace acc::device {

Opened open_device(const plugins::RuntimeSettings& settings) {
  if (settings.device == plugins::Device::cpu) {
    return {.device = open_cpu_device()};
  }
  throw Error(Errc::device, "device cuda: this libacc_runtime has no CUDA back end (use --cpu)");
}

}  // namespace acc::device
