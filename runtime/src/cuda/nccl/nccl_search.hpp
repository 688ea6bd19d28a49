#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace acc::cuda {

/// Where libnccl.so.2 may be, in the order of trying: `ACC_NCCL_LIBRARY` alone when it is set;
/// beside this library; what the loader finds; in a checkout's build/cuda; in the site-packages of
/// the Pythons of this environment. `variable` gives an environment variable or null.
std::vector<std::string> nccl_candidates(const std::function<const char*(const char*)>& variable,
                                         const std::filesystem::path& own_library);

}  // namespace acc::cuda
