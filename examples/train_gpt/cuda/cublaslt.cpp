// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublaslt.hpp"

#include <acc/base/error.hpp>
#include <acc/base/library_search.hpp>
#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <type_traits>

namespace train_gpt::cuda {
namespace {

const acc::LibrarySearch kCublasLt = {.variable = "ACC_CUBLASLT_LIBRARY",
                                      .sonames = {"libcublasLt.so.13", "libcublasLt.so.12"},
                                      .wheel_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"}};

[[noreturn]] void fail(const std::string& message) {
  throw acc::Error(acc::Errc::device, message);
}

/// Opens the library. A missing library is a device error for the user, not a missing file.
void* open_cublaslt() {
  try {
    std::error_code none;
    return acc::open_library(kCublasLt, std::filesystem::read_symlink("/proc/self/exe", none))
        .handle;
  } catch (const acc::Error& error) {
    fail(std::string("train_gpt needs cuBLASLt from CUDA 12 or 13: ") + error.what());
  }
}

}  // namespace

CublasLt::CublasLt() {
  void* library = open_cublaslt();
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) {
      fail(std::string("cuBLASLt lacks the function ") + name +
           "; the library must be from CUDA 12 or 13");
    }
  };
#define TRAIN_GPT_RESOLVE(name) resolve(name, "cublasLt" #name);
  TRAIN_GPT_CUBLASLT_FUNCTIONS(TRAIN_GPT_RESOLVE)
#undef TRAIN_GPT_RESOLVE
}

void CublasLt::check(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(std::string("cuBLASLt: ") + what + " failed: " + GetStatusString(status));
  }
}

}  // namespace train_gpt::cuda
