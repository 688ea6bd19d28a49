#pragma once

#include "acc/base/output_file.hpp"

namespace acc::checkpoint {

using acc::OutputFile;

}  // namespace acc::checkpoint
