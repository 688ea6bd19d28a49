// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/open/series_folder.hpp"

#include "acc/checkpoint/files/manifest.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace acc::checkpoint;
using Names = std::vector<std::string>;

// Returns a folder with these subfolders. Those with '!' are not complete.
struct Series {
  Series(const Names& names, const std::string& latest = "") {
    for (const std::string& name : names) {
      const bool complete = !name.starts_with("!");
      const fs::path path = top.path() / (complete ? name : name.substr(1));
      fs::create_directories(path / "optimizer_0");
      std::ofstream(path / "optimizer_0/.metadata") << "x";
      if (complete) {
        std::ofstream(path / kManifestFile) << "x";
      }
    }
    if (!latest.empty()) {
      std::ofstream(top.path() / "latest") << latest;
    }
  }

  [[nodiscard]] std::string newest() const {
    const auto path = folder.newest();
    return path ? path->lexically_relative(top.path()).string() : "";
  }
  [[nodiscard]] std::string next() const { return folder.next().filename().string(); }
  [[nodiscard]] Names names() const {
    Names names;
    for (const auto& entry : fs::directory_iterator(top.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  acc::test::TemporaryFolder top;
  SeriesFolder folder{top.path()};
};

}  // namespace

TEST_CASE("a series: the newest checkpoint, and the name of the next") {
  struct Row {
    Names names;
    std::string latest, newest, next;
  };
  const Row rows[] = {
      {{}, "", "", "checkpoint_0"},
      {{"checkpoint_0"}, "checkpoint_0", "checkpoint_0", "checkpoint_1"},
      {{"checkpoint_2", "checkpoint_10"}, "", "checkpoint_10", "checkpoint_11"},
      // Killed before `latest` was written, or `latest` was set to an older one by hand.
      {{"checkpoint_2", "checkpoint_3"}, "checkpoint_2", "checkpoint_2", "checkpoint_4"},
      {{"checkpoint_2", "checkpoint_3"}, "checkpoint_2\n", "checkpoint_2", "checkpoint_4"},
      // `latest` names a checkpoint that does not exist or is not complete.
      {{"checkpoint_2", "!checkpoint_3"}, "checkpoint_3", "checkpoint_2", "checkpoint_4"},
      {{"checkpoint_2"}, "checkpoint_9", "checkpoint_2", "checkpoint_3"},
      {{"!checkpoint_0"}, "", "", "checkpoint_1"},
      // These are not names of checkpoints.
      {{"checkpoint_01", "checkpoint_-1", "checkpoint_", "checkpoint_1x", "checkpoint_2.acc-tmp.7",
        "checkpoint_2.acc-old", "x_3", "checkpoint_9223372036854775807"},
       "",
       "",
       "checkpoint_0"},
      // A name outside of the folder.
      {{"checkpoint_1", "a/b"}, "a/b", "checkpoint_1", "checkpoint_2"},
      {{"checkpoint_1", "best"}, "best", "checkpoint_1", "checkpoint_2"},
      {{"checkpoint_1"}, ".", "checkpoint_1", "checkpoint_2"},
      {{"checkpoint_1"}, "..", "checkpoint_1", "checkpoint_2"},
      {{"checkpoint_1"}, std::string(10000, 'x'), "checkpoint_1", "checkpoint_2"},
  };
  for (const Row& row : rows) {
    CAPTURE(fmt::format("{}", fmt::join(row.names, " ")));
    CAPTURE(row.latest);
    const Series series(row.names, row.latest);
    CHECK(series.newest() == row.newest);
    CHECK(series.next() == row.next);
  }
  const SeriesFolder missing(fs::temp_directory_path() / "acc-no-such-folder");
  CHECK_FALSE(missing.newest().has_value());
  CHECK(missing.next().filename() == "checkpoint_0");
}

TEST_CASE("a checkpoint that Accelerate wrote counts as one") {
  const Series series({"checkpoint_0", "!checkpoint_1"});
  std::ofstream(series.top.path() / "checkpoint_1" / "model.safetensors") << "x";
  CHECK(series.newest() == "checkpoint_1");
}

TEST_CASE("a commit sets latest, and removes old checkpoints and leftovers") {
  struct Row {
    Names before;
    std::string committed;
    std::optional<int> limit;
    Names after;
  };
  const Row rows[] = {
      {{"checkpoint_0", "checkpoint_1"},
       "checkpoint_1",
       std::nullopt,
       {"checkpoint_0", "checkpoint_1"}},
      {{"checkpoint_0", "checkpoint_1", "checkpoint_2"},
       "checkpoint_2",
       2,
       {"checkpoint_1", "checkpoint_2"}},
      {{"checkpoint_9", "checkpoint_10", "checkpoint_11"}, "checkpoint_11/", 1, {"checkpoint_11"}},
      {{"checkpoint_0", "checkpoint_1"}, "checkpoint_1", 0, {"checkpoint_1"}},
      {{"checkpoint_0", "checkpoint_1"}, "checkpoint_1", 5, {"checkpoint_0", "checkpoint_1"}},
      // The committed checkpoint stays, whatever its number. Incomplete ones do not count.
      {{"checkpoint_0", "checkpoint_1", "checkpoint_2"},
       "checkpoint_0",
       2,
       {"checkpoint_0", "checkpoint_2"}},
      {{"checkpoint_0", "!checkpoint_1", "checkpoint_2"},
       "checkpoint_2",
       2,
       {"checkpoint_0", "!checkpoint_1", "checkpoint_2"}},
      // Leftovers of killed saves.
      {{"!checkpoint_0.acc-tmp.removed", "checkpoint_1", "!checkpoint_1.acc-tmp.7",
        "!checkpoint_2.acc-tmp.8", "!checkpoint_2.acc-tmp.8.acc-tmp.removed", "x.acc-tmp.7"},
       "checkpoint_1",
       std::nullopt,
       {"checkpoint_1", "x.acc-tmp.7"}},
  };
  for (const Row& row : rows) {
    CAPTURE(fmt::format("{}", fmt::join(row.before, " ")));
    const Series series(row.before, "an older one");
    CHECK(series.folder.committed(series.top.path() / row.committed, row.limit).empty());
    Names expected = row.after;
    for (std::string& name : expected) {
      name.erase(0, name.starts_with("!") ? 1 : 0);
    }
    expected.emplace_back("latest");
    std::sort(expected.begin(), expected.end());
    CHECK(fmt::format("{}", fmt::join(series.names(), " ")) ==
          fmt::format("{}", fmt::join(expected, " ")));
    const std::string name = row.committed.substr(0, row.committed.find('/'));
    CHECK(acc::test::file_text(series.top.path() / "latest") == name);
    CHECK(series.newest() == name);
  }
}
