// SPDX-License-Identifier: Apache-2.0
// Checks docs/settings-effects.md: it lists every setting that is passed to workers, and every test
// that it names exists.
#include "acc/settings/settings_table.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <regex>
#include <sstream>
#include <string>

namespace {

std::string file_text(const std::string& name) {
  return acc::test::file_text(std::string(ACC_SOURCE_DIR) + "/" + name);
}

/// Returns the source with the name of each test case joined to one string literal.
std::string joined(const std::string& source) {
  static const std::regex broken_line("\\(\\s+\"");
  static const std::regex broken_text("\"\\s*\n\\s*\"");
  return std::regex_replace(std::regex_replace(source, broken_line, "(\""), broken_text, "");
}

const std::string& page() {
  static const std::string text = file_text("docs/settings-effects.md");
  return text;
}

}  // namespace

TEST_CASE("docs/settings-effects.md has every setting that reaches workers") {
  for (const auto& row : acc::settings::settings_table()) {
    if (acc::settings::reaches_workers(row)) {
      CAPTURE(row.key);
      CHECK(page().find("`" + std::string(row.key) + "`") != std::string::npos);
    }
  }
}

TEST_CASE("docs/settings-effects.md names at least one existing test per row") {
  const std::regex named("`((?:unit|integration)/[a-z0-9_/]+\\.cpp)`: ([^|]+?)(?=<br>| \\|)");
  std::istringstream lines(page());
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| `", 0) != 0) {
      continue;
    }
    ++rows;
    CAPTURE(line);
    std::sregex_iterator found(line.begin(), line.end(), named);
    const std::sregex_iterator end;
    CHECK(found != end);
    for (; found != end; ++found) {
      const std::string name = (*found)[2];
      CAPTURE(name);
      CHECK(joined(file_text("test/" + (*found)[1].str())).find("TEST_CASE(\"" + name + "\"") !=
            std::string::npos);
    }
  }
  CHECK(rows > 50);
}
