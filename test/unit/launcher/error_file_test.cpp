#include "report/error_file.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace acc::launcher;

TEST_CASE("error files: what is read from them") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"message": {"message": "RuntimeError: no", "extraInfo": {"timestamp": "1"}}})",
       "RuntimeError: no"},
      {R"({"message": "plain", "timestamp": 1})", "plain"},
      {"", ""},
  };
  std::string folder = std::filesystem::temp_directory_path() / "acc_error_file_XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/error.json";
  CHECK(read_error_file(path).message.empty());  // not written
  CHECK(read_error_file("").message.empty());
  for (const auto& [text, message] : cases) {
    std::ofstream(path) << text;
    CHECK(read_error_file(path).message == message);
  }
  for (const char* bad : {"{", "[]", R"({"message": 3})", "\xff\xfe"}) {
    std::ofstream(path) << bad;
    CHECK(read_error_file(path).message ==
          "(" + path + " is not an error file as PyTorch writes it)");
  }
  std::filesystem::remove_all(folder);
}
