// SPDX-License-Identifier: Apache-2.0
#include "output/line_assembler.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

using acc::launcher::output::LineAssembler;
using namespace std::string_literals;

namespace {

/// Returns the prefixed lines of a stream whose `bytes` arrive in pieces of `piece` bytes.
std::string assembled(std::string_view bytes, std::size_t piece) {
  LineAssembler lines(std::make_shared<std::size_t>(0));
  std::string out;
  const auto take = [&out](std::string_view line) { out.append("[0] ").append(line); };
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    lines.feed(bytes.substr(at, piece), take);
  }
  lines.finish(take);
  return out;
}

}  // namespace

TEST_CASE("line assembler: lines get their prefix for any division of the stream into reads") {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"a\n", "[0] a\n"},
      {"a\nb\n", "[0] a\n[0] b\n"},
      {"\n\n", "[0] \n[0] \n"},
      {"no newline at the end", "[0] no newline at the end\n"},
      {"a\nrest", "[0] a\n[0] rest\n"},
      {"dos\r\nlines\r\n", "[0] dos\r\n[0] lines\r\n"},
      {"10%\r20%\r30%\ndone\n", "[0] 10%\r[0] 20%\r[0] 30%\n[0] done\n"},
      {"10%\r", "[0] 10%\r\n"},
      {"\0\x01\xff\xfe\0\n\x80"s, "[0] \0\x01\xff\xfe\0\n[0] \x80\n"s},
  };
  for (const auto& [bytes, expected] : cases) {
    for (const std::size_t piece : {1U, 2U, 3U, 5U, 1000U}) {
      CAPTURE(bytes);
      CAPTURE(piece);
      CHECK(assembled(bytes, piece) == expected);
    }
  }
}

TEST_CASE("line assembler: a line that exceeds the memory limit is broken without losing bytes") {
  constexpr std::size_t kMax = LineAssembler::kMaxHeld;
  const std::string endless(2 * kMax + 10, 'x');
  const std::string expected = "[0] " + std::string(kMax, 'x') + "\n[0] " + std::string(kMax, 'x') +
                               "\n[0] " + std::string(10, 'x') + "\n";
  CHECK((assembled(endless, 65536) == expected));
  CHECK((assembled(endless, endless.size()) == expected));
  const std::string longest(kMax, 'x');
  CHECK((assembled(longest + "\n", 65536) == "[0] " + longest + "\n"));
}

TEST_CASE("line assembler: streams share the memory limit; each may hold an ordinary line") {
  constexpr std::size_t kMax = LineAssembler::kMaxHeld;
  constexpr std::size_t kMin = LineAssembler::kMinBroken;
  const auto held = std::make_shared<std::size_t>(0);
  std::vector<std::size_t> sizes;
  const auto take = [&sizes](std::string_view line) { sizes.push_back(line.size()); };
  {
    LineAssembler hog(held);
    LineAssembler other(held);
    hog.feed(std::string(kMax, 'x'), take);
    other.feed(std::string(kMin, 'x'), take);
    CHECK(sizes.empty());
    CHECK(*held == kMax + kMin);
    other.feed("more", take);
    CHECK(sizes == std::vector{kMin + 1});
    hog.feed("more", take);
    CHECK(sizes == std::vector{kMin + 1, kMax + 1});
    CHECK(*held == 2 * std::string("more").size());
    hog.feed("\n", take);
    CHECK(*held == std::string("more").size());
  }
  CHECK(*held == 0);
}
