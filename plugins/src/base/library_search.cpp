// SPDX-License-Identifier: Apache-2.0
#include "acc/base/library_search.hpp"

#include "acc/base/error.hpp"
#include "acc/base/variables.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace acc {
namespace {

namespace fs = std::filesystem;

/// Splits a list of folders at ':', as in PATH. Relative and empty parts are dropped: they mean the
/// current folder, whose libraries may be anybody's.
std::vector<fs::path> split_path(const char* text) {
  std::vector<fs::path> parts;
  std::istringstream stream(text == nullptr ? "" : text);
  for (std::string part; std::getline(stream, part, ':');) {
    if (part.starts_with('/')) {
      parts.emplace_back(part);
    }
  }
  return parts;
}

/// Returns lib/python3.x/{site,dist}-packages below `prefix`, the highest version first. Debian
/// calls the folder dist-packages; Fedora uses lib64.
std::vector<fs::path> packages_below(const fs::path& prefix) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    for (const auto& entry : fs::directory_iterator(prefix / lib, none)) {
      if (entry.path().filename().string().starts_with("python3")) {
        found.push_back(entry.path() / "site-packages");
        found.push_back(entry.path() / "dist-packages");
      }
    }
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

/// Returns the installation prefixes of the Pythons that `python3` could mean in this environment:
/// active virtual environments first, then PATH, then `pip install --user`.
std::vector<fs::path> python_prefixes(const std::function<const char*(const char*)>& variable) {
  std::vector<fs::path> prefixes;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* value = variable(name)) {
      prefixes.emplace_back(value);
    }
  }
  for (const fs::path& folder : split_path(variable("PATH"))) {
    std::error_code none;
    if (fs::exists(folder / "python3", none)) {
      prefixes.push_back(folder.parent_path());
      prefixes.push_back(fs::canonical(folder / "python3", none).parent_path().parent_path());
    }
  }
  if (const char* home = variable("HOME")) {
    prefixes.push_back(fs::path(home) / ".local");
  }
  return prefixes;
}

/// Returns folders that contain unpacked wheels.
std::vector<fs::path> wheel_roots(const std::function<const char*(const char*)>& variable,
                                  const fs::path& own_file) {
  std::vector<fs::path> roots;
  // In a source checkout the libraries are in build/PRESET/lib, or deeper, and scripts/deps puts
  // wheels into build/wheels: at most four levels up. Above an installation others may write.
  fs::path folder = own_file.parent_path();
  for (int up = 0; up < 4 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    if (folder.filename() == "build") {
      roots.push_back(folder / "wheels");
    }
  }
  const std::vector<fs::path> python_path = split_path(variable("PYTHONPATH"));
  roots.insert(roots.end(), python_path.begin(), python_path.end());
  for (const fs::path& prefix : python_prefixes(variable)) {
    const auto below = packages_below(prefix);
    roots.insert(roots.end(), below.begin(), below.end());
  }
  return roots;
}

std::vector<fs::path> toolkit_folders(const std::function<const char*(const char*)>& variable) {
  std::vector<fs::path> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = variable(name)) {
      folders.push_back(fs::path(root) / "lib64");
      folders.push_back(fs::path(root) / "lib");
    }
  }
  folders.emplace_back("/usr/local/cuda/lib64");
  return folders;
}

}  // namespace

std::vector<std::string> library_candidates(const LibrarySearch& search,
                                            const std::function<const char*(const char*)>& variable,
                                            const fs::path& own_file) {
  if (const char* path = variable(search.variable.c_str())) {
    return {path};
  }
  std::vector<std::string> candidates;
  const auto add_from = [&](const fs::path& folder) {
    for (const std::string& soname : search.sonames) {
      const std::string path = (folder / soname).string();
      std::error_code none;
      if (fs::exists(path, none) &&
          std::find(candidates.begin(), candidates.end(), path) == candidates.end()) {
        candidates.push_back(path);
      }
    }
  };
  add_from(own_file.parent_path());
  candidates.insert(candidates.end(), search.sonames.begin(), search.sonames.end());
  for (const fs::path& folder : toolkit_folders(variable)) {
    add_from(folder);
  }
  for (const fs::path& root : wheel_roots(variable, own_file)) {
    for (const std::string& wheel : search.wheel_folders) {
      add_from(root / wheel);
    }
  }
  return candidates;
}

OpenedLibrary open_library(const LibrarySearch& search, const fs::path& own_file) {
  std::string reasons;
  for (const std::string& path : library_candidates(
           search, [](const char* name) { return std::getenv(name); }, own_file)) {
    if (void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return {handle, path};
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(::dlerror());
  }
  if (std::getenv(search.variable.c_str()) != nullptr) {  // dlerror's text begins with the path
    throw Error(Errc::not_found, search.variable + "=" + reasons);
  }
  throw Error(Errc::not_found, reasons + "; set " + search.variable + " to the path of " +
                                   search.sonames.front() + " if it is elsewhere");
}

const LibrarySearch& nccl_library_search() {
  static const LibrarySearch kNccl = {.variable = kNcclLibraryVariable,
                                      .sonames = {"libnccl.so.2"},
                                      .wheel_folders = {"nvidia/nccl/lib"}};
  return kNccl;
}

}  // namespace acc
