#pragma once

#include "acc/base/export.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace acc {

/// A shared library that is opened at run time and comes with a system, a toolkit or in a wheel of
/// some Python.
struct LibrarySearch {
  std::string variable;                    ///< that may name the file: "ACC_NCCL_LIBRARY"
  std::vector<std::string> sonames;        ///< the preferred first
  std::vector<std::string> wheel_folders;  ///< below site-packages: "nvidia/nccl/lib"
};

/// Files to try, in this order: the one that the variable names, alone; beside `own_file` (a
/// library or program of ours); what the loader finds; CUDA_HOME and CUDA_PATH; what scripts/deps
/// brought into the checkout that `own_file` was built in; the site-packages of this environment's
/// Pythons. `variable` gives an environment variable or null.
ACC_API std::vector<std::string> library_candidates(
    const LibrarySearch& search, const std::function<const char*(const char*)>& variable,
    const std::filesystem::path& own_file);

struct OpenedLibrary {
  void* handle;  ///< dlopen's; stays open
  std::string path;
};

/// Opens the first candidate that loads. Throws Error(not_found) with what the loader said of each.
ACC_API OpenedLibrary open_library(const LibrarySearch& search,
                                   const std::filesystem::path& own_file);

/// NCCL, as the runtime looks for it.
ACC_API const LibrarySearch& nccl_library_search();

}  // namespace acc
