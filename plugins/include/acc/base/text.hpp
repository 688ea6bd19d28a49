#pragma once

#include "acc/base/export.hpp"

#include <string>
#include <vector>

namespace acc {

/// Rising numbers as the kernel writes lists of them: "0-3,8,10-11".
ACC_API std::string number_list(const std::vector<int>& numbers);

/// A word as a shell takes it, in quotes only where it must be.
ACC_API std::string shell_quoted(const std::string& word);

/// An IPv6 address without the brackets that it has in a URL, `[::1]`; any other text unchanged.
inline std::string without_brackets(const std::string& host) {
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

}  // namespace acc
