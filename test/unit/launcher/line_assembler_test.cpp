#include "output/line_assembler.hpp"

#include <doctest/doctest.h>

using acc::launcher::LastLines;
using acc::launcher::LineAssembler;
using namespace std::string_literals;

namespace {

/// What comes out when `bytes` arrive in pieces of `piece` bytes.
std::string assembled(const std::string& prefix, std::string_view bytes, std::size_t piece) {
  LineAssembler lines(prefix);
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    lines.feed(bytes.substr(at, piece), out);
  }
  lines.finish(out);
  return out;
}

}  // namespace

TEST_CASE("lines get their prefix however the bytes are torn") {
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
      CHECK(assembled("[0] ", bytes, piece) == expected);
    }
  }
}

TEST_CASE("without a prefix bytes pass as they come") {
  LineAssembler lines("");
  std::string out;
  lines.feed("50%", out);
  CHECK(out == "50%");
  lines.feed("\rpartial", out);
  lines.finish(out);
  CHECK(out == "50%\rpartial");
}

TEST_CASE("a line without an end is broken at the limit, and no byte is lost") {
  constexpr std::size_t kMax = LineAssembler::kMaxLine;
  const std::string endless(2 * kMax + 10, 'x');
  const std::string expected = ">" + std::string(kMax, 'x') + "\n>" + std::string(kMax, 'x') +
                               "\n>" + std::string(10, 'x') + "\n";
  CHECK((assembled(">", endless, 65536) == expected));
  CHECK((assembled(">", endless, endless.size()) == expected));
}

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

TEST_CASE("last lines: few, overwritten and long ones") {
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
