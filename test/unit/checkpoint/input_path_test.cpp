// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/input_path.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json_form.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>

using namespace acc::checkpoint;
using acc::test::contains;
using acc::test::refusal;
using acc::test::TemporaryFolder;
using acc::test::write_text;

namespace fs = std::filesystem;

TEST_CASE("a folder that is read must stay as it was first seen") {
  struct Row {
    const char* what;
    std::function<void(const fs::path& folder)> change;
    const char* message;  ///< empty: nothing that was read has changed
  };
  const Row rows[] = {
      {"nothing", [](const fs::path&) {}, ""},
      {"a file that was not read", [](const fs::path& at) { write_text(at / "other", "1"); }, ""},
      {"written in place", [](const fs::path& at) { write_text(at / "a.part", "new"); },
       "folder/a.part: was written, replaced or removed while the checkpoint was read"},
      {"listed and not opened", [](const fs::path& at) { write_text(at / "b.part", "new"); },
       "folder/b.part: was written"},
      {"replaced",
       [](const fs::path& at) {
         write_text(at / "new", "old");
         fs::rename(at / "new", at / "a.part");
       },
       "folder/a.part: was written"},
      {"removed", [](const fs::path& at) { fs::remove(at / "a.part"); }, "folder/a.part: was"},
      {"one more", [](const fs::path& at) { write_text(at / "c.part", "new"); },
       "folder: has other files"},
      {"looked for", [](const fs::path& at) { write_text(at / "latest", "new"); },
       "folder/latest: has appeared"},
      {"another folder",
       [](const fs::path& at) {
         fs::rename(at, at.string() + ".old");
         fs::copy(at.string() + ".old", at);
       },
       "folder: was replaced or removed"},
      {"no folder", [](const fs::path& at) { fs::remove_all(at); }, "folder: was replaced"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const TemporaryFolder folder;
    const fs::path at = folder.path() / "folder";
    fs::create_directory(at);
    write_text(at / "a.part", "old");
    write_text(at / "b.part", "old");
    const InputPath input = at;
    CHECK(input.names_of([](const std::string& name) { return name.ends_with(".part"); }) ==
          std::vector<std::string>{"a.part", "b.part"});
    CHECK_FALSE((input / "latest").exists());
    CHECK(InputFile(input / "a.part").nbytes() == 3);
    row.change(at);
    if (*row.message == '\0') {
      CHECK_NOTHROW(input.check_unchanged());
      continue;
    }
    const std::string message = refusal([&] { input.check_unchanged(); });
    CAPTURE(message);
    CHECK(contains(message, row.message));
    // The faults that a reader meets in such a folder have the same reason.
    CHECK(refusal([&] {
            read_unchanged(input, [] { throw acc::Error(acc::Errc::config, "truncated"); });
          }) == message);
  }
}

TEST_CASE("a file that was opened again is the one that was opened first") {
  const TemporaryFolder folder;
  write_text(folder.path() / "file", "old");
  const InputPath file = folder.path() / "file";
  CHECK(file.is_file());
  CHECK(InputFile(file).nbytes() == 3);
  CHECK(InputFile(file).nbytes() == 3);
  write_text(folder.path() / "file", "new");
  CHECK(contains(refusal([&] { InputFile{file}; }), "file: was written or replaced"));
}

TEST_CASE("the form of a JSON text: its depth, and a name that occurs twice") {
  struct Row {
    const char* text;
    int depth;
    const char* twice;
  };
  for (const Row& row :
       {Row{"1", 0, ""}, Row{R"({"a": 1})", 1, ""}, Row{R"({"a": [[], {}]})", 3, ""},
        Row{R"({"a": 1, "b": 2, "a": 3})", 1, "a"}, Row{R"({"a": {"b": 1}, "c": {"b": 2}})", 2, ""},
        Row{R"([[[)", 3, ""}}) {
    CAPTURE(row.text);
    const acc::JsonForm form = acc::json_form(row.text);
    CHECK(form.depth == row.depth);
    CHECK(form.twice.value_or("") == row.twice);
  }
}
