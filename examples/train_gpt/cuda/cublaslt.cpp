#include "cublaslt.hpp"

#include <acc/base/error.hpp>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

namespace train_gpt::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "ACC_CUBLASLT_LIBRARY";
constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr const char* kWheelFolders[] = {"nvidia/cu13/lib", "nvidia/cublas/lib"};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// <prefix>/lib/python3.*/{site,dist}-packages
void add_packages(std::vector<fs::path>& folders, const fs::path& prefix) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", none)) {
    if (entry.path().filename().string().starts_with("python3")) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        for (const char* wheel : kWheelFolders) {
          folders.push_back(entry.path() / packages / wheel);
        }
      }
    }
  }
}

/// The folder above the first bin/ of the PATH that has a python3.
fs::path python_prefix() {
  std::istringstream path(environment("PATH"));
  std::error_code none;
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty() && fs::exists(fs::path(folder) / "python3", none)) {
      return fs::path(folder).parent_path();
    }
  }
  return {};
}

std::vector<fs::path> candidate_folders() {
  std::vector<fs::path> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string root = environment(name); !root.empty()) {
      folders.push_back(fs::path(root) / "lib64");
      folders.push_back(fs::path(root) / "lib");
    }
  }
  folders.emplace_back("/usr/local/cuda/lib64");
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  for (const char* wheel : kWheelFolders) {
    folders.push_back(program.parent_path().parent_path() / wheel);
  }
  if (const std::string root = environment("VIRTUAL_ENV"); !root.empty()) {
    add_packages(folders, root);
  }
  for (const fs::path& prefix : {python_prefix(), fs::path("/usr/local"), fs::path("/usr")}) {
    add_packages(folders, prefix);
  }
  return folders;
}

[[noreturn]] void fail(const std::string& message) {
  throw acc::Error(acc::Errc::device, message);
}

void* open_named(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(std::string(kVariable) + "=" + path + " cannot be opened: " + dlerror());
  }
  return library;
}

void* open_library() {
  if (const std::string named = environment(kVariable); !named.empty()) {
    return open_named(named);
  }
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      return library;
    }
  }
  std::error_code none;
  std::string looked;
  for (const fs::path& folder : candidate_folders()) {
    if (!fs::exists(folder, none)) {
      continue;
    }
    looked += ", " + folder.string();
    for (const char* name : kNames) {
      const fs::path path = folder / name;
      void* library =
          fs::exists(path, none) ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
      if (library != nullptr) {
        return library;
      }
    }
  }
  fail("train_gpt needs cuBLASLt (" + std::string(kNames[0]) + " or " + kNames[1] +
       "), which is neither where the loader looks nor in the folders of CUDA and Python" + looked +
       "; " + kVariable + " can name the file");
}

}  // namespace

CublasLt::CublasLt() {
  void* library = open_library();
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) {
      fail(std::string("the cuBLASLt that was found lacks ") + name +
           "; it must be of CUDA 12 or 13");
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
