#pragma once

#include "acc/launcher/face.hpp"

#include <string>
#include <string_view>

namespace acc::launcher {

/// Returns the long flag of a key in the front end's spelling: `--nproc-per-node`.
std::string as_typed(const Face& face, std::string_view key);

}  // namespace acc::launcher
