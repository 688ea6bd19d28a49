// The numbers that ADD finds in stored values: as strtoll reads them, without its saturation.
#include "decimal.hpp"

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
  acc::fuzz::require(found.has_value() == is_number, "a number or none, as strtoll");
  acc::fuzz::require(!found || *found == expected, "the same number as strtoll");
  return 0;
}
