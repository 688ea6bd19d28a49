// SPDX-License-Identifier: Apache-2.0
#include "output/last_lines.hpp"

#include <doctest/doctest.h>

using acc::launcher::output::LastLines;

TEST_CASE("the last lines are kept") {
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += "line " + std::to_string(i) + "\n";
  }
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{100}, text.size()}) {
    CAPTURE(piece);
    LastLines last;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      last.feed(std::string_view(text).substr(at, piece));
    }
    auto lines = last.lines();
    REQUIRE(lines.size() == LastLines::kLines);
    CHECK(lines.front() == "line 980");
    CHECK(lines.back() == "line 999");

    last.feed("Error: no newline");
    lines = last.lines();
    CHECK(lines.size() == LastLines::kLines);
    CHECK(lines.front() == "line 981");
    CHECK(lines.back() == "Error: no newline");
  }
}

TEST_CASE("last lines: few lines, overwritten lines, and a long line") {
  LastLines last;
  CHECK(last.lines().empty());
  last.feed("first\n 10%\r 20%\r 30%\r\n");
  last.feed(std::string(100'000, 'y'));
  const auto lines = last.lines();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "first");
  CHECK(lines[1] == " 30%");
  CHECK(lines[2] == std::string(LastLines::kLineLength, 'y'));
}
