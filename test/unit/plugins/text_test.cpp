#include "acc/base/text.hpp"

#include <doctest/doctest.h>

using acc::number_list;

TEST_CASE("lists of numbers are written as the kernel does") {
  CHECK(number_list({}).empty());
  CHECK(number_list({0}) == "0");
  CHECK(number_list({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
  CHECK(number_list({5, 7}) == "5,7");
}
