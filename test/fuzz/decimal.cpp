// SPDX-License-Identifier: Apache-2.0
// Fuzzes leading_integer, with which ADD reads stored values: it must agree with strtoll, except
// that a number out of range is none.
#include "store/decimal.hpp"

#include "input.hpp"

#include <cerrno>
#include <string>

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  char* end = nullptr;
  errno = 0;
  const long long expected = std::strtoll(text.c_str(), &end, 10);
  const bool is_number = end != text.c_str() && errno == 0;

  const auto found = acc::rendezvous::leading_integer(text);
  acc::fuzz::require(found.has_value() == is_number, "a number is found if strtoll finds one");
  acc::fuzz::require(!found || *found == expected, "the number is the same as strtoll's");
  return 0;
}
