// SPDX-License-Identifier: Apache-2.0
#include "acc/base/library_search.hpp"

#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace {

namespace fs = std::filesystem;
using acc::test::TemporaryFolder;

std::string put(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "x";
  return path.string();
}

std::vector<std::string> candidates(const std::map<std::string, std::string>& variables,
                                    const fs::path& own) {
  auto found_paths = acc::library_candidates(
      {.variable = "ACC_NCCL_LIBRARY",
       .sonames = {"libnccl.so.2"},
       .wheel_folders = {"nvidia/nccl/lib"}},
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      own);
  // A CUDA toolkit of the machine may contain one too.
  std::erase_if(found_paths,
                [](const std::string& path) { return path.starts_with("/usr/local/cuda"); });
  return found_paths;
}

}  // namespace

TEST_CASE("a library is searched where it may be installed, nearest place first") {
  const TemporaryFolder folder;
  const fs::path& root = folder.path();
  const fs::path own = root / "checkout/build/release/lib/libacc_cuda.so";
  const auto venv = put(root / "venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2");
  const auto user =
      put(root / "home/.local/lib/python3.9/site-packages/nvidia/nccl/lib/libnccl.so.2");
  const auto on_path = put(root / "opt/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2");
  put(root / "opt/bin/python3");
  const auto toolkit = put(root / "toolkit/lib64/libnccl.so.2");
  const auto brought = put(root / "checkout/build/wheels/nvidia/nccl/lib/libnccl.so.2");
  const std::map<std::string, std::string> variables = {
      {"CUDA_HOME", root / "toolkit"},
      {"VIRTUAL_ENV", root / "venv"},
      {"HOME", root / "home"},
      {"PATH", "/nonexistent:" + (root / "opt/bin").string()}};
  CHECK(candidates(variables, own) ==
        std::vector<std::string>{"libnccl.so.2", toolkit, brought, venv, on_path, user});

  const auto beside = put(own.parent_path() / "libnccl.so.2");
  CHECK(candidates({}, own) == std::vector<std::string>{beside, "libnccl.so.2", brought});

  // Neither the current folder nor a folder above an installation, such as /tmp: both may be
  // anybody's.
  const fs::path current = fs::current_path();
  fs::current_path(root);
  const std::map<std::string, std::string> relative = {{"PATH", ":opt/bin:"},
                                                       {"PYTHONPATH", "checkout/build/wheels"}};
  CHECK(candidates(relative, root / "prefix/lib/libacc_cuda.so") ==
        std::vector<std::string>{"libnccl.so.2"});
  fs::current_path(current);
  put(root / "wheels/nvidia/nccl/lib/libnccl.so.2");
  CHECK(candidates({}, root / "prefix/lib/libacc_cuda.so") ==
        std::vector<std::string>{"libnccl.so.2"});

  auto named = variables;
  named["ACC_NCCL_LIBRARY"] = "/somewhere/libnccl.so.2";
  CHECK(candidates(named, own) == std::vector<std::string>{"/somewhere/libnccl.so.2"});
}
