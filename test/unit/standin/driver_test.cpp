// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      throw std::runtime_error(dlerror());
    }
  }
  ~Library() { dlclose(handle_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(handle_, name));
    if (function == nullptr) {
      throw std::runtime_error(std::string("no function ") + name);
    }
    return function(arguments...);
  }

 private:
  void* handle_;
};

using Values = std::map<std::string, std::string>;

/// Sets environment variables and restores them in the destructor.
class Variables {
 public:
  explicit Variables(Values values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : values_) {
      ::unsetenv(name.c_str());
    }
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  Values values_;
};

constexpr unsigned kTextSize = 96;
using Text = std::array<char, kTextSize>;

std::vector<std::string> cuda_bus_ids() {
  const Library cuda(ACC_STANDIN_DRIVER);
  REQUIRE(cuda.call("cuInit", 0U) == 0);
  int count = 0;
  REQUIRE(cuda.call("cuDeviceGetCount", &count) == 0);
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) {
    int device = -1;
    Text text{};
    REQUIRE(cuda.call("cuDeviceGet", &device, i) == 0);
    REQUIRE(cuda.call("cuDeviceGetPCIBusId", text.data(), int{kTextSize}, device) == 0);
    ids.emplace_back(text.data());
  }
  return ids;
}

}  // namespace

TEST_CASE("the stand-in driver lists the devices that CUDA_VISIBLE_DEVICES selects") {
  CHECK(cuda_bus_ids() == std::vector<std::string>{"0000:10:00.0", "0000:11:00.0"});
  const Variables variables(Values{{"ACC_STANDIN_DEVICES", "4"}, {"CUDA_VISIBLE_DEVICES", "2,0"}});
  CHECK(cuda_bus_ids() == std::vector<std::string>{"0000:12:00.0", "0000:10:00.0"});
}

TEST_CASE("the stand-in driver without a device") {
  const Library cuda(ACC_STANDIN_DRIVER);
  const std::vector<Values> cases = {{{"ACC_STANDIN_ERROR", "no_device"}},
                                     {{"ACC_STANDIN_ERROR", "no_driver"}},
                                     {{"ACC_STANDIN_DEVICES", "0"}},
                                     {{"CUDA_VISIBLE_DEVICES", "-1"}}};
  for (const auto& values : cases) {
    const Variables variables(values);
    CHECK(cuda.call("cuInit", 0U) == 100);  // CUDA_ERROR_NO_DEVICE
    int count = 0;
    CHECK(cuda.call("cuDeviceGetCount", &count) == 3);  // CUDA_ERROR_NOT_INITIALIZED
  }
}

TEST_CASE("the stand-in NVML lists every device") {
  const Variables variables(
      {{"ACC_STANDIN_DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "0"}, {"ACC_STANDIN_NUMA", "0,1"}});
  const Library nvml(ACC_STANDIN_NVML);
  unsigned count = 0;
  CHECK(nvml.call("nvmlDeviceGetCount_v2", &count) == 1);  // NVML_ERROR_UNINITIALIZED
  REQUIRE(nvml.call("nvmlInit_v2") == 0);
  REQUIRE(nvml.call("nvmlDeviceGetCount_v2", &count) == 0);
  CHECK(count == 3);
  const std::array<int, 3> expected_status = {0, 0, 3};  // 3: NVML_ERROR_NOT_SUPPORTED, unknown
  const std::array<unsigned long, 3> expected_nodes = {1, 2, 0};
  for (unsigned i = 0; i < count; ++i) {
    CAPTURE(i);
    void* device = nullptr;
    Text text{};
    unsigned long nodes = 0;
    REQUIRE(nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &device) == 0);
    REQUIRE(nvml.call("nvmlDeviceGetUUID", device, text.data(), kTextSize) == 0);
    CHECK(std::string(text.data()) ==
          "GPU-ac000000-0000-0000-0000-00000000000" + std::to_string(i));
    CHECK(nvml.call("nvmlDeviceGetMemoryAffinity", device, 1U, &nodes, 0U) == expected_status[i]);
    CHECK(nodes == expected_nodes[i]);
  }
  void* device = nullptr;
  CHECK(nvml.call("nvmlDeviceGetHandleByIndex_v2", 3U, &device) == 2);  // …_INVALID_ARGUMENT
}

TEST_CASE("the stand-in NVML without its driver, and with an old one") {
  const Library nvml(ACC_STANDIN_NVML);
  {
    const Variables variables(Values{{"ACC_STANDIN_ERROR", "no_driver"}});
    CHECK(nvml.call("nvmlInit_v2") == 9);  // NVML_ERROR_DRIVER_NOT_LOADED
  }
  const Variables variables(Values{{"ACC_STANDIN_ERROR", "old_driver"}});
  REQUIRE(nvml.call("nvmlInit_v2") == 0);
  Text version{};
  REQUIRE(nvml.call("nvmlSystemGetDriverVersion", version.data(), kTextSize) == 0);
  CHECK(std::string(version.data()) == "535.54.03");
}
