#include "acc/launcher/explain.hpp"
#include "host/own_variables.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace acc::launcher {
namespace {

std::string file_text(const std::string& name) {
  std::ifstream file(std::string(ACC_SOURCE_DIR) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// After a change of the table: acclaunch environment-table > docs/environment.md, and the like.
TEST_CASE("the reference tables in docs/ are those of the settings table") {
  CHECK(file_text("docs/environment.md") == environment_document());
  CHECK(file_text("docs/configuration.md") == configuration_document());
}

TEST_CASE("docs/environment.md names every variable that the launcher reads") {
  const std::regex reading(R"re((?:getenv|variable|value_of)\([^;"]*"([A-Z][A-Z0-9_]*)")re");
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
      CHECK(std::ranges::find(own_variables(), name, &OwnVariable::name) != own_variables().end());
    }
  }
  CHECK(files > 50);
}

}  // namespace
}  // namespace acc::launcher
