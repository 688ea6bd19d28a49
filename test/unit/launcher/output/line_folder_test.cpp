// SPDX-License-Identifier: Apache-2.0
#include "output/line_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

using acc::launcher::output::LineFolder;
using namespace std::chrono_literals;

namespace {

struct Sourced {
  int rank;
  std::string text;
  std::chrono::milliseconds at;
};

struct Folded {
  std::set<int> ranks;
  std::string text;
  bool operator==(const Folded&) const = default;
};

LineFolder folder_of(int ranks) {
  LineFolder folder;
  for (int rank = 0; rank < ranks; ++rank) {
    folder.join(rank);
  }
  return folder;
}

void take_ready(LineFolder& folder, LineFolder::Time now, std::vector<Folded>& out) {
  while (auto line = folder.take(now)) {
    out.push_back({std::move(line->ranks), std::move(line->text)});
  }
}

std::vector<Folded> folded(int ranks, const std::vector<Sourced>& lines) {
  LineFolder folder = folder_of(ranks);
  std::vector<Folded> out;
  for (const Sourced& line : lines) {
    take_ready(folder, LineFolder::Time(line.at), out);
    folder.add(line.rank, line.text, LineFolder::Time(line.at));
    take_ready(folder, LineFolder::Time(line.at), out);
  }
  take_ready(folder, LineFolder::Time::max(), out);
  return out;
}

}  // namespace

TEST_CASE("line folder: equal lines of several ranks are merged") {
  struct Case {
    const char* what;
    std::vector<Sourced> lines;
    std::vector<Folded> folded;
  };
  const Case cases[] = {
      {"all ranks write it", {{0, "a", 0ms}, {1, "a", 1ms}, {2, "a", 2ms}}, {{{0, 1, 2}, "a"}}},
      {"two of three", {{0, "a", 0ms}, {2, "a", 1ms}}, {{{0, 2}, "a"}}},
      {"different texts", {{0, "a", 0ms}, {1, "b", 0ms}}, {{{0}, "a"}, {{1}, "b"}}},
      {"too late", {{0, "a", 0ms}, {1, "a", 200ms}}, {{{0}, "a"}, {{1}, "a"}}},
      {"just in time", {{0, "a", 0ms}, {1, "a", 199ms}}, {{{0, 1}, "a"}}},
      {"one rank twice",
       {{0, "a", 0ms}, {0, "a", 0ms}, {1, "a", 0ms}},
       {{{0, 1}, "a"}, {{0}, "a"}}},
      {"all twice, one rank ahead",
       {{0, "a", 0ms}, {0, "b", 0ms}, {0, "a", 0ms}, {1, "a", 0ms}, {1, "b", 0ms}, {1, "a", 0ms}},
       {{{0, 1}, "a"}, {{0, 1}, "b"}, {{0, 1}, "a"}}},
      {"the order of each rank's lines is kept",
       {{0, "a", 0ms}, {0, "b", 0ms}, {1, "b", 0ms}, {1, "a", 0ms}},
       {{{0}, "a"}, {{0, 1}, "b"}, {{1}, "a"}}},
      {"a line of only one rank is moved before a shared line",
       {{0, "0", 0ms}, {0, "a", 0ms}, {1, "1", 0ms}, {1, "a", 0ms}, {2, "2", 0ms}, {2, "a", 0ms}},
       {{{0}, "0"}, {{1}, "1"}, {{2}, "2"}, {{0, 1, 2}, "a"}}},
      {"a shared line is not moved",
       {{0, "a", 0ms}, {0, "b", 0ms}, {1, "b", 0ms}, {1, "c", 0ms}, {2, "c", 0ms}, {0, "c", 0ms}},
       {{{0}, "a"}, {{0, 1}, "b"}, {{0, 1, 2}, "c"}}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    CHECK(folded(3, c.lines) == c.folded);
  }
}

TEST_CASE("line folder: lines do not wait for a rank that has left") {
  LineFolder folder = folder_of(3);
  folder.add(0, "a", {});
  folder.add(1, "a", {});
  CHECK_FALSE(folder.take({}).has_value());
  CHECK(folder.due() == LineFolder::Time(LineFolder::kWindow));
  folder.leave(2);
  REQUIRE(folder.take({}).has_value());
  CHECK_FALSE(folder.due().has_value());
}

TEST_CASE("line folder: a line moved before a shared line does not prolong the wait") {
  LineFolder folder = folder_of(3);
  folder.add(0, "shared", LineFolder::Time(0ms));
  folder.add(1, "own", LineFolder::Time(150ms));
  folder.add(1, "shared", LineFolder::Time(150ms));
  CHECK(folder.due() == LineFolder::Time(LineFolder::kWindow));
  std::vector<Folded> out;
  take_ready(folder, LineFolder::Time(LineFolder::kWindow), out);
  CHECK(out == std::vector<Folded>{{{1}, "own"}, {{0, 1}, "shared"}});
}

TEST_CASE("line folder: pending lines are limited in number and bytes") {
  const std::pair<std::size_t, std::size_t> cases[] = {{LineFolder::kMaxLines, 10}, {10, 100'000}};
  for (const auto& [room, length] : cases) {
    LineFolder folder = folder_of(2);
    std::size_t taken = 0;
    for (std::size_t number = 0; number < 3 * room; ++number) {
      std::string text = std::to_string(number);
      text.resize(length, ' ');
      folder.add(0, text, {});
      for (; const auto line = folder.take({}); ++taken) {
        CHECK(std::stoul(line->text) == taken);
      }
    }
    CHECK(taken == 2 * room);
  }
}

TEST_CASE("line folder: no line of a rank is lost or moved out of its order") {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 6);
    const unsigned words = 1 + random() % 8;
    std::vector<Sourced> lines;
    std::chrono::milliseconds now = 0ms;
    for (int count = 0; count < 300; ++count) {
      now += std::chrono::milliseconds(random() % 20);
      lines.push_back({static_cast<int>(random()) % ranks, std::to_string(random() % words), now});
      lines.back().rank = std::abs(lines.back().rank);
    }
    std::map<int, std::vector<std::string>> said;
    for (const Sourced& line : lines) {
      said[line.rank].push_back(line.text);
    }
    std::map<int, std::vector<std::string>> shown;
    for (const Folded& line : folded(ranks, lines)) {
      for (const int rank : line.ranks) {
        shown[rank].push_back(line.text);
      }
    }
    REQUIRE(shown == said);
  }
}
