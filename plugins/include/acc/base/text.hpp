#pragma once

#include "acc/base/export.hpp"

#include <string>
#include <vector>

namespace acc {

/// Rising numbers as the kernel writes lists of them: "0-3,8,10-11".
ACC_API std::string number_list(const std::vector<int>& numbers);

/// A word as a shell takes it, in quotes only where it must be.
ACC_API std::string shell_quoted(const std::string& word);

}  // namespace acc
