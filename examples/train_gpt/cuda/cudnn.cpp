// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn.hpp"

#include <acc/base/error.hpp>
#include <acc/base/library_search.hpp>
#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <string>
#include <system_error>
#include <type_traits>

namespace train_gpt::cuda::cudnn {
namespace {

const acc::LibrarySearch kSearch = {.variable = "ACC_CUDNN_LIBRARY",
                                    .sonames = {"libcudnn.so.9"},
                                    .wheel_folders = {"nvidia/cudnn/lib"}};

[[noreturn]] void fail(const std::string& message) {
  throw acc::Error(acc::Errc::device, message);
}

acc::OpenedLibrary open_cudnn() {
  try {
    std::error_code none;
    return acc::open_library(kSearch, std::filesystem::read_symlink("/proc/self/exe", none));
  } catch (const acc::Error& error) {
    fail(std::string("cuDNN 9 is not found: ") + error.what());
  }
}

// Encoding since cuDNN 9: major * 10000 + minor * 100 + patch.
std::string version_text(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Library::Library() {
  const acc::OpenedLibrary opened = open_cudnn();
  path = opened.path;
  const auto resolve = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened.handle, name));
    if (function == nullptr) {
      fail(path + " lacks the function " + name + "; it must be cuDNN 9");
    }
  };
#define TRAIN_GPT_RESOLVE(name, type) resolve(name, "cudnn" #name);
  TRAIN_GPT_CUDNN_FUNCTIONS(TRAIN_GPT_RESOLVE)
#undef TRAIN_GPT_RESOLVE
  if (GetVersion() < kOldest) {
    fail("cuDNN " + version_text(kOldest) + " or newer is needed, " + path + " is " + version());
  }
}

void Library::check(Status status, const char* what) const {
  if (status == Status::success) {
    return;
  }
  std::array<char, 1024> reason{};
  GetLastErrorString(reason.data(), reason.size());
  fail(std::string("cuDNN: ") + what + " failed: " + GetErrorString(status) +
       (reason[0] == '\0' ? "" : std::string(": ") + reason.data()));
}

std::string Library::version() const {
  return version_text(GetVersion());
}

}  // namespace train_gpt::cuda::cudnn
