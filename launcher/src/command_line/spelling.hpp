#pragma once

#include "acc/launcher/face.hpp"

#include <string>
#include <string_view>

namespace acc::launcher {

/// The long flag of a key as the face's users write it: `--nproc-per-node`.
std::string as_typed(const Face& face, std::string_view key);

}  // namespace acc::launcher
