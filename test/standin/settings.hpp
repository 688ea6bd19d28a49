// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Properties of the stand-in machine. They are read from the ACC_STANDIN_* variables
/// (test/standin/README.md) and shared by all stand-in libraries.
namespace standin {

enum class Fault { none, no_driver, old_driver, no_device };

struct Settings {
  int devices = 2;
  std::size_t memory = std::size_t{1} << 30;  ///< bytes per device
  Fault fault = Fault::none;
  std::string failing;    ///< name of the function of which one call fails
  long failing_call = 0;  ///< number of that call, from 1
  std::uint64_t seed = 1;
  long idle_ms = 20;      ///< delay after which queued work starts that no thread waits for
  int capability = 90;    ///< compute capability: 10 * major + minor
  std::vector<int> numa;  ///< NUMA node of each device; -1 or missing: unknown
};

/// Reads the variables. Ends the process with a message if one is malformed.
Settings read_settings();
/// Devices selected by CUDA_VISIBLE_DEVICES (indices or UUIDs), in its order, up to the first entry
/// that does not exist.
std::vector<int> visible_devices(const Settings& settings);

/// CUDA version that the driver reports: 1000 * major + 10 * minor.
inline constexpr int kDriverVersion = 13000;
inline constexpr int kOldDriverVersion = 12020;
/// Byte that fills memory without defined content: a NaN as float, double, half and bfloat16.
inline constexpr int kPoison = 0xff;
inline constexpr const char* kDeviceName = "stand-in GPU (host memory)";

std::array<unsigned char, 16> device_uuid(int device);
/// "GPU-" and the UUID, in the format of NVML.
std::string device_uuid_text(int device);
int device_pci_bus(int device);
/// "0000:10:00.0", with `domain_digits` digits before the first colon.
std::string device_pci_text(int device, int domain_digits);
int device_numa_node(const Settings& settings, int device);

/// Prints "stand-in CUDA: " and the message, and aborts: the program did something that fails on a
/// GPU.
[[noreturn]] void die(const std::string& message);

}  // namespace standin
