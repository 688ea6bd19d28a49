#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// What a stand-in machine looks like, told by the ACC_STANDIN_* variables (test/standin/README.md)
/// and shared by the stand-in libraries.
namespace standin {

enum class Fault { none, no_driver, old_driver, no_device };

struct Settings {
  int devices = 2;
  std::size_t memory = std::size_t{1} << 30;  ///< bytes a device
  Fault fault = Fault::none;
  std::string failing;    ///< name of the function one of whose calls fails
  long failing_call = 0;  ///< which: 1 is the first
  std::uint64_t seed = 1;
  long idle_ms = 20;      ///< queued work that nobody waits for starts after so long
  std::vector<int> numa;  ///< a node for each device; -1 or absent: unknown
};

/// Ends the process with a sentence when a variable cannot be understood.
Settings read_settings();
/// Those that CUDA_VISIBLE_DEVICES leaves, in its order: indices or UUIDs, up to the first that is
/// not there.
std::vector<int> visible_devices(const Settings& settings);

/// CUDA's version as the driver tells it: 1000 * major + 10 * minor.
inline constexpr int kDriverVersion = 13000;
inline constexpr int kOldDriverVersion = 12020;
inline constexpr const char* kDeviceName = "stand-in GPU (host memory)";

std::array<unsigned char, 16> device_uuid(int device);
/// "GPU-…" as NVML writes it.
std::string device_uuid_text(int device);
int device_pci_bus(int device);
/// "0000:10:00.0", with so many digits before the first colon.
std::string device_pci_text(int device, int domain_digits);
int device_numa_node(const Settings& settings, int device);

/// Prints "stand-in CUDA: …" and aborts: a program did what would go wrong on a GPU.
[[noreturn]] void die(const std::string& message);

}  // namespace standin
