#include "cuda/nccl/nccl_search.hpp"

#include <algorithm>
#include <sstream>

namespace acc::cuda {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSoname = "libnccl.so.2";
constexpr const char* kInWheels = "nvidia/nccl/lib";

std::vector<fs::path> split_path(const char* text) {
  std::vector<fs::path> parts;
  std::istringstream stream(text == nullptr ? "" : text);
  for (std::string part; std::getline(stream, part, ':');) {
    if (!part.empty()) {
      parts.emplace_back(part);
    }
  }
  return parts;
}

/// lib/python3.x/{site,dist}-packages below `prefix`, newest first.
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

/// Prefixes of the Pythons that a user of this environment would start.
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

}  // namespace

std::vector<std::string> nccl_candidates(const std::function<const char*(const char*)>& variable,
                                         const fs::path& own_library) {
  if (const char* path = variable("ACC_NCCL_LIBRARY")) {
    return {path};
  }
  std::vector<std::string> candidates;
  const auto add_if_there = [&candidates](const fs::path& path) {
    std::error_code none;
    if (fs::exists(path, none) &&
        std::find(candidates.begin(), candidates.end(), path.string()) == candidates.end()) {
      candidates.push_back(path.string());
    }
  };
  add_if_there(own_library.parent_path() / kSoname);
  candidates.emplace_back(kSoname);
  // In a checkout this library lies in build/PRESET/lib, or deeper.
  fs::path folder = own_library.parent_path();
  for (int up = 0; up < 4 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    add_if_there(folder / "cuda" / kInWheels / kSoname);
  }
  std::vector<fs::path> packages = split_path(variable("PYTHONPATH"));
  for (const fs::path& prefix : python_prefixes(variable)) {
    const auto below = packages_below(prefix);
    packages.insert(packages.end(), below.begin(), below.end());
  }
  for (const fs::path& each : packages) {
    add_if_there(each / kInWheels / kSoname);
  }
  return candidates;
}

}  // namespace acc::cuda
