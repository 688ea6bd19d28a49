#include "acc/launcher/explain.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>

namespace acc::launcher {
namespace {

std::string file_text(const std::string& name) {
  std::ifstream file(std::string(ACC_SOURCE_DIR) + "/docs/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// After a change of the table: acclaunch environment-table > docs/environment.md, and the like.
TEST_CASE("the reference tables in docs/ are those of the settings table") {
  CHECK(file_text("environment.md") == environment_document());
  CHECK(file_text("configuration.md") == configuration_document());
}

}  // namespace
}  // namespace acc::launcher
