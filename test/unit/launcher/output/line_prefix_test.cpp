// SPDX-License-Identifier: Apache-2.0
#include "output/line_prefix.hpp"

#include <doctest/doctest.h>

using namespace acc::launcher;

TEST_CASE("line prefix: macros are replaced, everything else stays") {
  struct Case {
    const char* pattern;
    int num_machines;
    const char* prefix;
  };
  const output::LineSource source{
      .role_name = "trainer", .rank = 13, .local_rank = 5, .host = "node1"};
  const Case cases[] = {
      {"", 1, "[13] "},
      {"", 2, "[node1 13] "},
      {"[${role_name}${local_rank}]:", 1, "[trainer5]:"},
      {"${host}/${rank} ${rank}", 1, "node1/13 13"},
      {"no macro ", 4, "no macro "},
      {"$rank $$ ${other} $other ${rank", 1, "13 $ ${other} $other ${rank"},
      {"$${rank} $ $", 1, "${rank} $ $"},
      {"r\xc3\xa4ng ${rank}\t", 1, "r\xc3\xa4ng 13\t"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.pattern);
    CHECK(output::line_prefix(c.pattern, source, c.num_machines) == c.prefix);
  }
  CHECK(output::line_prefix("${role_name}", {"${rank}", 0, 0, ""}, 1) == "${rank}");
}
