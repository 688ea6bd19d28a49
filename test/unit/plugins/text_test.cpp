// SPDX-License-Identifier: Apache-2.0
#include "acc/base/text.hpp"

#include "acc/base/seconds_text.hpp"

#include <doctest/doctest.h>

using acc::number_list;
using acc::printable;
using acc::printable_lines;

TEST_CASE("lists of numbers are formatted as the kernel's CPU lists") {
  CHECK(number_list({}).empty());
  CHECK(number_list({0}) == "0");
  CHECK(number_list({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
  CHECK(number_list({5, 7}) == "5,7");
}

TEST_CASE("a short time is not rounded down to 0 s") {
  using std::chrono::milliseconds;
  CHECK(acc::seconds_text(milliseconds(250)) == "0.25 s");
  CHECK(acc::seconds_text(milliseconds(1500)) == "1.5 s");
  CHECK(acc::seconds_text(std::chrono::hours(300)) == "1080000 s");
}

TEST_CASE("untrusted text is escaped for terminals") {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"plain\ttext", "plain\ttext"},
      {"C:\\x1b", "C:\\x1b"},
      {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"},
      {std::string("\r\b\0\x7f", 4), "\\x0d\\x08\\x00\\x7f"},
      {"\xc2\x9b"
       "31m",
       "\\xc2\\x9b31m"},  // CSI as one character (U+009B)
      {"\xff\xfe", "\\xff\\xfe"},
      {"cut \xe2\x82", "cut \\xe2\\x82"},
      {"\xe2\x1b[0m", "\\xe2\\x1b[0m"},
      {"\xc0\xaf \xed\xa0\x80", "\\xc0\\xaf \\xed\\xa0\\x80"},  // overlong encoding, surrogate
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},             // above U+10FFFF
      {"a\xe2\x80\xae"
       "b",
       "a\\xe2\\x80\\xaeb"},                // right-to-left override
      {"\xe2\x80\xa8", "\\xe2\\x80\\xa8"},  // a line separator
  };
  for (const auto& [text, shown] : cases) {
    CAPTURE(shown);
    CHECK(printable(text) == shown);
    CHECK(printable_lines(text) == shown);
  }
  CHECK(printable("node1\nacclaunch: all is well") == "node1\\x0aacclaunch: all is well");
  CHECK(printable_lines("one\ntwo\x1b") == "one\ntwo\\x1b");
}
