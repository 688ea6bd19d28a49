#pragma once

#include <string>

namespace acc::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace acc::test
