// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/atomic_folder.hpp"

#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace acc::checkpoint;
using acc::OutputFile;
using acc::test::names_in;
using acc::test::refusal;
using acc::test::TemporaryFolder;

bool is_ours(const std::string& path) {
  return path == "top" || path == "inner/deep/file";
}

AtomicFolder folder_at(const fs::path& target, std::uint32_t id = 1) {
  return {target, is_ours, id};
}

void fill(const AtomicFolder& folder, const std::string& text) {
  for (const char* path : {"top", "inner/deep/file"}) {
    OutputFile file(folder.temporary() / path);
    file.write(text);
    file.close();
  }
}

void save(const fs::path& target, const std::string& text, std::uint32_t id = 1) {
  AtomicFolder folder = folder_at(target, id);
  folder.begin();
  folder.make({"inner/deep"});
  fill(folder, text);
  folder.commit();
}

// Returns the text that both files hold; "" if the folder does not exist or is incomplete.
std::string content(const fs::path& folder) {
  const std::string text = acc::test::file_text(folder / "top");
  return acc::test::file_text(folder / "inner/deep/file") == text ? text : "";
}

}  // namespace

TEST_CASE("a folder appears, and is replaced, in one step") {
  const TemporaryFolder top;
  const fs::path target = top.path() / "not" / "there" / "yet";
  save(target, "first");
  CHECK(content(target) == "first");
  AtomicFolder second = folder_at(target, 2);
  second.make({"inner/deep"});  // another process's, before the committer began
  second.begin();
  second.make();
  fill(second, "second");
  CHECK(content(target) == "first");
  second.commit();
  CHECK(content(target) == "second");
  CHECK(names_in(target.parent_path()) == std::set<std::string>{"yet"});
}

TEST_CASE("a folder that is replaced keeps its owner and its mode") {
  const TemporaryFolder top;
  const fs::path target = top.path() / "folder";
  save(target, "first");
  const bool is_root = ::geteuid() == 0;
  REQUIRE((!is_root || ::chown(target.c_str(), 65534, 65534) == 0));
  REQUIRE(::chmod(target.c_str(), 0700) == 0);
  save(target, "second", 2);
  CHECK(content(target) == "second");
  struct stat status {};
  REQUIRE(::stat(target.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  CHECK(status.st_uid == (is_root ? 65534U : ::geteuid()));
}

TEST_CASE("an abandoned folder leaves the older one") {
  const TemporaryFolder top;
  save(top.path() / "c", "first");
  AtomicFolder second = folder_at(top.path() / "c", 2);
  second.begin();
  second.make({"inner/deep"});
  fill(second, "second");
  second.abandon();
  CHECK(content(top.path() / "c") == "first");
  CHECK(names_in(top.path()) == std::set<std::string>{"c"});
}

TEST_CASE("a symbolic link, a relative name and a trailing slash lead to the same folder") {
  const TemporaryFolder top;
  fs::create_directory(top.path() / "real");
  fs::create_directory_symlink("real", top.path() / "link");
  save(top.path() / "link" / "", "first");
  save(top.path() / "link" / "." / "", "second");
  CHECK(fs::is_symlink(top.path() / "link"));
  CHECK(content(top.path() / "real") == "second");
}

TEST_CASE("a folder with other files is neither replaced nor removed") {
  struct Row {
    const char* what;
    std::function<void(const fs::path& top)> damage;
    const char* message;
  };
  const Row rows[] = {
      {"a file", [](const fs::path& top) { std::ofstream(top / "c/thesis.tex") << "x"; },
       "it holds 'thesis.tex'"},
      {"a file below", [](const fs::path& top) { std::ofstream(top / "c/inner/top") << "x"; },
       "it holds 'inner/top'"},
      {"a link to a folder",
       [](const fs::path& top) { fs::create_directory_symlink("/", top / "c/inner/root"); },
       "it holds 'inner/root'"},
      {"in what a predecessor left",
       [](const fs::path& top) {
         fs::create_directory(top / "c.acc-tmp.7");
         std::ofstream(top / "c.acc-tmp.7/thesis.tex") << "x";
       },
       "it holds 'thesis.tex'"},
      {"a file in its place",
       [](const fs::path& top) {
         fs::remove_all(top / "c");
         std::ofstream(top / "c") << "x";
       },
       "a file with that name exists"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const TemporaryFolder top;
    save(top.path() / "c", "first");
    row.damage(top.path());
    const auto entries = [&] {
      return std::distance(fs::recursive_directory_iterator(top.path()), {});
    };
    const auto before = entries();
    const std::string message = refusal([&] { folder_at(top.path() / "c", 2).begin(); });
    CAPTURE(message);
    CHECK(acc::test::contains(message, row.message));
    CHECK(entries() == before);
  }
}

TEST_CASE("leftovers of killed saves are removed, files of this attempt are not") {
  const TemporaryFolder top;
  const fs::path target = top.path() / "c";
  save(target, "first");
  for (const char* left : {"c.acc-tmp.5", "c.acc-tmp.removed", "c.acc-tmp.removed.1"}) {
    fs::create_directories(top.path() / left / "inner/deep");
    std::ofstream(top.path() / left / "inner/deep/file") << "half";
  }
  fs::create_directory(top.path() / "cc.acc-tmp.5");  // another target's
  AtomicFolder other_process = folder_at(target, 2);
  other_process.make({"inner/deep"});
  fill(other_process, "second");
  AtomicFolder committer = folder_at(target, 2);
  committer.begin();
  committer.commit();
  CHECK(content(target) == "second");
  CHECK(names_in(top.path()) == std::set<std::string>{"c", "cc.acc-tmp.5"});
}

TEST_CASE("without an exchange, the newer folder is found after a kill at any step") {
  for (const bool has_half_of_older : {false, true}) {
    CAPTURE(has_half_of_older);
    const TemporaryFolder top;
    const fs::path target = top.path() / "c";
    save(target, "first");
    fs::copy(target, top.path() / "c.acc-new", fs::copy_options::recursive);
    fs::remove(target / "top");
    if (!has_half_of_older) {
      fs::remove_all(target);
    }
    CHECK(content(folder_at(target).current()) == "first");
    folder_at(target, 2).begin();
    CHECK(content(target) == "first");
    CHECK(names_in(top.path()) == std::set<std::string>{"c"});
    CHECK(folder_at(target).current() == folder_at(target).target());
  }
}

TEST_CASE("two jobs that save to one folder: one of them fails with that reason") {
  const TemporaryFolder top;
  const fs::path target = top.path() / "c";
  AtomicFolder loser = folder_at(target, 1);
  loser.make({"inner/deep"});
  CHECK_NOTHROW(loser.check_there());
  save(target, "winner's", 2);
  const std::string message = refusal([&] { loser.check_there(); });
  CHECK(message == refusal([&] { loser.commit(); }));
  CHECK(acc::test::contains(message, "/c: "));
  CHECK(acc::test::contains(message, "/c.acc-tmp.1 is gone: another job saves to the same folder"));

  // Both began before the other committed. The later one finds that the name exists.
  AtomicFolder later(top.path() / "c", is_ours, 3, Existing::refuse);
  later.make({"inner/deep"});
  fill(later, "later");
  CHECK(acc::test::contains(refusal([&] { later.commit(); }),
                            "/c appeared during this save: another job saves"));
  CHECK(content(target) == "winner's");
}

TEST_CASE("a save that is suspended during another save fails when it continues, at any step") {
  const std::function<void(AtomicFolder&)> steps[] = {
      [](AtomicFolder& folder) { folder.begin(), folder.make(); },
      [](AtomicFolder& folder) { folder.make({"inner/deep"}); },
      [](AtomicFolder& folder) { fill(folder, folder.temporary().extension().string()); },
      [](AtomicFolder& folder) { folder.commit(); },
  };
  for (std::size_t asleep_after = 1; asleep_after < std::size(steps); ++asleep_after) {
    for (std::size_t awake_after = 1; awake_after <= std::size(steps); ++awake_after) {
      CAPTURE(asleep_after);
      CAPTURE(awake_after);
      const TemporaryFolder top;
      AtomicFolder sleeper = folder_at(top.path() / "c", 1);
      AtomicFolder successor = folder_at(top.path() / "c", 2);
      for (std::size_t i = 0; i < asleep_after; ++i) {
        steps[i](sleeper);
      }
      for (std::size_t i = 0; i < awake_after; ++i) {
        steps[i](successor);
      }
      CHECK_FALSE(refusal([&] { steps[asleep_after](sleeper); }).empty());
      for (std::size_t i = awake_after; i < std::size(steps); ++i) {
        steps[i](successor);
      }
      CHECK(content(top.path() / "c") == ".2");
      CHECK(names_in(top.path()) == std::set<std::string>{"c"});
    }
  }
}

TEST_CASE("a removed folder loses its name at once") {
  const TemporaryFolder top;
  save(top.path() / "c", "first");
  fs::create_directories(top.path() / "c.acc-tmp.removed" / "of a killed one");
  remove_at_once(top.path() / "c");
  remove_at_once(top.path() / "c");
  CHECK(names_in(top.path()) == std::set<std::string>{"c.acc-tmp.removed"});
  remove_at_once(top.path() / "c.acc-tmp.removed");
  CHECK(names_in(top.path()).empty());
}
