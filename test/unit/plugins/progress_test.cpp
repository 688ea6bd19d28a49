// SPDX-License-Identifier: Apache-2.0
#include "acc/base/progress.hpp"

#include <doctest/doctest.h>

namespace acc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("progress: nothing below two seconds, then one line per interval") {
  for (const bool overwrites : {false, true}) {
    CAPTURE(overwrites);
    ProgressLines lines("saving x", 4'000'000'000, overwrites);
    CHECK_FALSE(lines.is_due(milliseconds(1999)));
    CHECK(lines.last(milliseconds(1999), 4'000'000'000).empty());
    CHECK(lines.is_due(seconds(2)));
    CHECK(lines.next(seconds(2), 1'000'000'000) ==
          "saving x: 1 GB of 4 GB, 25 %, 500 MB/s, 6 s left");
    const auto interval = overwrites ? milliseconds(200) : milliseconds(10'000);
    CHECK_FALSE(lines.is_due(seconds(2) + interval - milliseconds(1)));
    CHECK(lines.is_due(seconds(2) + interval));
    CHECK(lines.last(seconds(20), 4'000'000'000) == "saving x: 4 GB in 20.0 s, 200 MB/s");
    CHECK(lines.last(seconds(20), 3'999'999'999).empty());  // it has failed
  }
}

TEST_CASE("progress: lines of unusual operations") {
  struct Case {
    std::uint64_t total;
    std::uint64_t done;
    milliseconds elapsed;
    const char* line;
  };
  for (const Case& each : {
           Case{0, 3'000'000, seconds(3), "x: 3 MB, 1 MB/s"},
           Case{100, 0, seconds(3), "x: 0 B of 100 B, 0 %, 0 B/s"},
           Case{100, 100, seconds(10), "x: 100 B of 100 B, 100 %, 10 B/s, flushing to the disk"},
           Case{100, 170, seconds(10), "x: 100 B of 100 B, 100 %, 17 B/s, flushing to the disk"},
           Case{1'000'000, 1'000, seconds(10), "x: 1 KB of 1 MB, 0 %, 100 B/s, 2:46 h left"},
           Case{1'000, 100, seconds(10), "x: 100 B of 1 KB, 10 %, 10 B/s, 1:30 min left"},
       }) {
    CAPTURE(each.line);
    CHECK(ProgressLines("x", each.total, false).next(each.elapsed, each.done) == each.line);
  }
}

}  // namespace
}  // namespace acc
