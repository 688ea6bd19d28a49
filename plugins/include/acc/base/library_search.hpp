// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace acc {

/// Describes a shared library that is opened with dlopen: it may come with the system, with a CUDA
/// toolkit or in a Python wheel.
struct LibrarySearch {
  std::string variable;                    ///< names the file, if set: ACC_NCCL_LIBRARY
  std::vector<std::string> sonames;        ///< in order of preference
  std::vector<std::string> wheel_folders;  ///< below site-packages: "nvidia/nccl/lib"
};

/// Returns the files to try. If the environment variable is set, it is the only candidate.
/// Otherwise, in this order: the folder of `own_file` (a library or program of acclaunch); the bare
/// sonames, for the dynamic loader's own search; the CUDA toolkit (CUDA_HOME, CUDA_PATH,
/// /usr/local/cuda); the wheels that scripts/deps downloaded into the checkout where `own_file` was
/// built; PYTHONPATH and the site-packages of the Pythons of this environment. `variable` returns
/// the value of an environment variable, or null.
ACC_API std::vector<std::string> library_candidates(
    const LibrarySearch& search, const std::function<const char*(const char*)>& variable,
    const std::filesystem::path& own_file);

/// A library that was opened.
struct OpenedLibrary {
  void* handle;  ///< from dlopen; never closed
  std::string path;
};

/// Opens the first candidate that loads. Throws Error(not_found) with the loader's message for each
/// candidate.
ACC_API OpenedLibrary open_library(const LibrarySearch& search,
                                   const std::filesystem::path& own_file);

/// Returns the search that the runtime uses for NCCL.
ACC_API const LibrarySearch& nccl_library_search();

}  // namespace acc
