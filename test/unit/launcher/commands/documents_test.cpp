// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/explain.hpp"
#include "host/own_variables.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace acc::launcher {
namespace {

std::string file_text(const std::string& name) {
  return acc::test::file_text(std::string(ACC_SOURCE_DIR) + "/" + name);
}

// After a change of the settings table, copy the output of acclaunch environment-table and of
// acclaunch configuration-table into the pages.
TEST_CASE("the reference pages in docs/ contain the tables that the commands print") {
  for (const auto& [page, tables] : {std::pair("docs/environment.md", environment_tables()),
                                     std::pair("docs/configuration.md", configuration_tables())}) {
    for (const std::string& table : tables) {
      CAPTURE(page);
      CAPTURE(table);
      CHECK(file_text(page).find("\n\n" + table) != std::string::npos);
    }
  }
}

TEST_CASE("docs/environment.md names every variable that the launcher reads") {
  const std::regex reading(
      R"re((?:getenv|variable|value_of|job\.[a-z_]+)\([^;"]*"([A-Z][A-Za-z0-9_]*)")re");
  std::set<std::string, std::less<>> listed;
  for (const host::OwnVariable& variable : host::own_variables()) {
    listed.emplace(variable.name);
  }
  for (const host::ManagerVariables& row : host::manager_variables()) {
    for (const std::string_view name : split(row.names, ' ')) {
      listed.emplace(name);
    }
  }
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(ACC_SOURCE_DIR "/launcher/src")) {
    if (entry.path().extension() != ".cpp") {
      continue;
    }
    ++files;
    const std::string text = file_text(entry.path().lexically_relative(ACC_SOURCE_DIR).string());
    for (std::sregex_iterator found(text.begin(), text.end(), reading), end; found != end;
         ++found) {
      const std::string name = (*found)[1];
      CAPTURE(entry.path());
      CAPTURE(name);
      CHECK(listed.contains(name));
    }
  }
  CHECK(files > 50);
}

TEST_CASE("docs/environment.md lists exactly the job manager variables that are read") {
  std::string text;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(ACC_SOURCE_DIR "/launcher/src/cluster")) {
    if (entry.path().extension() == ".cpp") {
      text += file_text(entry.path().lexically_relative(ACC_SOURCE_DIR).string());
    }
  }
  std::set<std::string> listed;
  for (const host::ManagerVariables& row : host::manager_variables()) {
    for (const std::string_view name : split(row.names, ' ')) {
      CAPTURE(name);
      CHECK(text.find("\"" + std::string(name) + "\"") != std::string::npos);
      listed.emplace(name);
    }
  }
  const std::regex literal(R"re("([A-Z][A-Z0-9]*_[A-Za-z0-9_]+|RANK)")re");
  for (std::sregex_iterator found(text.begin(), text.end(), literal), end; found != end; ++found) {
    const std::string name = (*found)[1];
    CAPTURE(name);
    CHECK(listed.contains(name));
  }
}

}  // namespace
}  // namespace acc::launcher
