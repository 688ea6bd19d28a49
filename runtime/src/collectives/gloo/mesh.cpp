// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/mesh.hpp"

#include "acc/base/error.hpp"
#include "acc/base/part_path.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

namespace acc::collectives {
namespace {

constexpr const char* kLibrary = "libacc_gloo.so";
/// gloo::Context::createUnboundBuffer(void*, unsigned long), which every Gloo exports.
constexpr const char* kGlooSymbol = "_ZN4gloo7Context19createUnboundBufferEPvm";

/// True if the symbols of Gloo that the dynamic loader would find first are those of another copy,
/// for instance of LibTorch's in a program that links LibTorch.
bool other_gloo_in_program() {
  const void* const found = dlsym(RTLD_DEFAULT, kGlooSymbol);
  Dl_info where{};
  return found != nullptr && dladdr(found, &where) != 0 && where.dli_fname != nullptr &&
         !std::filesystem::path(where.dli_fname).filename().string().starts_with("libgloo.");
}

/// Loads the library once; it is never unloaded, because threads of Gloo may run.
MeshEntry load() {
  const std::string path = part_path(kLibrary);
  // RTLD_DEEPBIND: the library and its Gloo find their own symbols before those of the program.
  // Only if that is needed: it also hides an allocator that the program puts in front of libc's.
  const int binding = other_gloo_in_program() ? RTLD_DEEPBIND : 0;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | binding);
  if (library == nullptr) {
    throw Error(Errc::not_supported,
                fmt::format("groups over several machines need {}: {}", kLibrary, dlerror()));
  }
  return reinterpret_cast<MeshEntry>(dlsym(library, kMeshEntry));
}

}  // namespace

std::unique_ptr<Mesh> connect_mesh(const Mesh::Options& options) {
  static const MeshEntry entry = load();
  std::unique_ptr<Mesh> mesh(entry == nullptr ? nullptr : entry(kMeshVersion, options));
  if (mesh == nullptr) {
    throw Error(Errc::config,
                fmt::format("{} has a different version than the runtime that loads it: "
                            "install both from one build",
                            kLibrary));
  }
  return mesh;
}

}  // namespace acc::collectives
