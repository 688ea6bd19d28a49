// SPDX-License-Identifier: Apache-2.0
#include "standin/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>

namespace standin {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

template <typename Number>
Number number(const std::string& text, const char* name) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    die(std::string(name) + ": '" + text + "' is not a number");
  }
  return value;
}

template <typename Number>
void read_number(const char* name, Number& value) {
  if (const std::string text = variable(name); !text.empty()) {
    value = number<Number>(text, name);
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

Fault read_fault() {
  const std::string text = variable("ACC_STANDIN_ERROR");
  if (text.empty() || text == "none") {
    return Fault::none;
  }
  if (text == "no_driver") {
    return Fault::no_driver;
  }
  if (text == "old_driver") {
    return Fault::old_driver;
  }
  if (text == "no_device") {
    return Fault::no_device;
  }
  die("ACC_STANDIN_ERROR must be none, no_driver, old_driver or no_device, got '" + text + "'");
}

void read_failing(Settings& settings) {
  const std::string text = variable("ACC_STANDIN_FAIL");
  if (text.empty()) {
    return;
  }
  const auto colon = text.find(':');
  settings.failing = text.substr(0, colon);
  settings.failing_call =
      colon == std::string::npos ? 1 : number<long>(text.substr(colon + 1), "ACC_STANDIN_FAIL");
}

/// Number of the device with that index or UUID prefix; -1 if there is none.
int device_called(const std::string& name, int devices) {
  for (int device = 0; device < devices; ++device) {
    const std::string uuid = device_uuid_text(device);
    const bool is_uuid_prefix = name.size() > 4 && uuid.starts_with(name);
    if (is_uuid_prefix || name == std::to_string(device)) {
      return device;
    }
  }
  return -1;
}

}  // namespace

Settings read_settings() {
  Settings settings;
  read_number("ACC_STANDIN_DEVICES", settings.devices);
  read_number("ACC_STANDIN_MEMORY", settings.memory);
  read_number("ACC_STANDIN_SEED", settings.seed);
  read_number("ACC_STANDIN_IDLE_MS", settings.idle_ms);
  read_number("ACC_STANDIN_CAPABILITY", settings.capability);
  settings.fault = read_fault();
  read_failing(settings);
  for (const std::string& node : split(variable("ACC_STANDIN_NUMA"))) {
    settings.numa.push_back(number<int>(node, "ACC_STANDIN_NUMA"));
  }
  return settings;
}

std::vector<int> visible_devices(const Settings& settings) {
  std::vector<int> visible;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int device = 0; device < settings.devices; ++device) {
      visible.push_back(device);
    }
    return visible;
  }
  for (const std::string& name : split(list)) {
    const int device = device_called(name, settings.devices);
    if (device < 0) {
      break;
    }
    if (std::ranges::find(visible, device) != visible.end()) {
      return {};  // like the driver if a device is listed twice
    }
    visible.push_back(device);
  }
  return visible;
}

std::array<unsigned char, 16> device_uuid(int device) {
  std::array<unsigned char, 16> bytes{};
  bytes[0] = 0xac;
  bytes[15] = static_cast<unsigned char>(device);
  return bytes;
}

std::string device_uuid_text(int device) {
  std::string text = "GPU-";
  const auto bytes = device_uuid(device);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", bytes[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? "-" : "";
    text += digits.data();
  }
  return text;
}

int device_pci_bus(int device) {
  return 0x10 + device;
}

std::string device_pci_text(int device, int domain_digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%0*X:%02X:00.0", domain_digits, 0U,
                static_cast<unsigned>(device_pci_bus(device)));
  return text.data();
}

int device_numa_node(const Settings& settings, int device) {
  const auto i = static_cast<std::size_t>(device);
  return i < settings.numa.size() ? settings.numa[i] : -1;
}

void die(const std::string& message) {
  std::fprintf(stderr, "stand-in CUDA: %s\n", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace standin
