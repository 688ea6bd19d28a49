// SPDX-License-Identifier: Apache-2.0
#include "output/status_line.hpp"

#include <doctest/doctest.h>

using namespace acc::launcher;
using namespace std::chrono_literals;

TEST_CASE("status line: its text") {
  struct Case {
    output::JobStatus status;
    std::chrono::milliseconds up;
    const char* text;
  };
  const Case cases[] = {
      {{2, 2, 0, {}}, 0ms, "acclaunch: 2 of 2 workers, 0:00"},
      {{7, 8, 0, {}}, 61'999ms, "acclaunch: 7 of 8 workers, 1:01"},
      {{8, 8, 1, {}}, 7'397s, "acclaunch: 8 of 8 workers, 1 restart, 2:03:17"},
      {{0, 64, 12, {}}, 3599s, "acclaunch: 0 of 64 workers, 12 restarts, 59:59"},
      {{64, 64, 0, {}}, 100h + 5s, "acclaunch: 64 of 64 workers, 100:00:05"},
  };
  for (const Case& c : cases) {
    CHECK(output::status_text(c.status, c.status.started_at + c.up) == c.text);
  }
}

TEST_CASE("status line: erased before output, drawn after it") {
  const std::string erase = "\r\033[K";
  output::StatusLine line;
  CHECK(line.around("before\n") == "before\n");
  line.set("status");
  CHECK(line.around("") == "status");
  CHECK(line.around("") == "");
  CHECK(line.around("output\n") == erase + "output\nstatus");
  line.set("other");
  CHECK(line.around("a\nb\n") == erase + "a\nb\nother");
  line.set("");
  CHECK(line.around("") == erase);
  CHECK(line.around("after\n") == "after\n");
}

TEST_CASE("status line: not drawn after an unfinished line") {
  output::StatusLine line;
  line.set("status");
  CHECK(line.around("10%\r") == "10%\r");
  CHECK(line.around("") == "");
  CHECK(line.around("20%") == "20%");
  CHECK(line.around("\n") == "\nstatus");
  CHECK(line.around("30%\r") == "\r\033[K30%\r");
  line.set("");
  CHECK(line.around("") == "");
}
