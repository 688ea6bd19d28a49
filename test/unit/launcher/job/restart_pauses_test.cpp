// SPDX-License-Identifier: Apache-2.0
#include "job/restart_pauses.hpp"

#include <doctest/doctest.h>

#include <vector>

using acc::launcher::job::RestartPauses;
using std::chrono::milliseconds;
using namespace std::chrono_literals;

TEST_CASE("pauses before restarts grow until an attempt was healthy") {
  struct Case {
    std::chrono::seconds longest;
    std::vector<milliseconds> ran_for;
    std::vector<milliseconds> pauses;
  };
  const Case cases[] = {
      {60s,
       {0s, 5ms, 1s, 59s, 0s, 0s, 0s, 0s, 0s, 0s},
       {0s, 1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s, 60s}},
      {60s, {0s, 0s, 60s, 0s, 0s}, {0s, 1s, 0s, 1s, 2s}},
      {60s, {90s, 90s, 90s}, {0s, 0s, 0s}},
      {3s, {0s, 0s, 0s, 0s, 0s}, {0s, 1s, 2s, 3s, 3s}},
      {0s, {0s, 0s, 0s}, {0s, 0s, 0s}},
  };
  for (const Case& each : cases) {
    CAPTURE(each.longest.count());
    RestartPauses pauses(each.longest);
    std::vector<milliseconds> found;
    for (const milliseconds ran_for : each.ran_for) {
      found.push_back(pauses.next(ran_for));
    }
    CHECK(found == each.pauses);
  }
}
