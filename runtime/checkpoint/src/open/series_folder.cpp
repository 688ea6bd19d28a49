// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/open/series_folder.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/object_store.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/files/input_path.hpp"
#include "acc/checkpoint/files/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

// Order of the steps of `committed`, after the checkpoint itself has its name: `latest` is
// replaced, then leftovers are removed, then checkpoints beyond the limit. A crash between two of
// them leaves one checkpoint too many, or `latest` with the name of the one before. Both are
// harmless: `newest` accepts any complete checkpoint, and the next call removes the rest.
constexpr const char* kLatest = "latest";
constexpr const char* kLeftBehind = ".acc-tmp.";  // in names that a killed save or removal left

std::string name_of(std::int64_t number) {
  return "checkpoint_" + std::to_string(number);
}

// Returns n of "checkpoint_<n>" if the name is exactly what name_of writes (no leading zeros).
std::optional<std::int64_t> number_of(std::string_view name) {
  const std::string_view digits = name.substr(name.find('_') + 1);
  std::int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool usable =
      name == name_of(number) && number >= 0 && number < std::numeric_limits<std::int64_t>::max();
  return usable ? std::optional(number) : std::nullopt;
}

bool is_left_behind(std::string_view name) {
  const std::size_t end = name.find(kLeftBehind);
  return end != std::string_view::npos && number_of(name.substr(0, end)).has_value();
}

// True if the checkpoint is complete. Ours get their name only when they are; Accelerate's have no
// manifest, and count if their model is there.
// Objects of a save that was killed stay under its name, so that only the manifest tells, and the
// mark that the save removes last.
bool is_complete(const fs::path& checkpoint) {
  const InputPath opened = checkpoint;
  const bool has_manifest = (opened / kManifestFile).is_file();
  return is_object(checkpoint) ? has_manifest && !(opened / kUnfinishedMark).is_file()
                               : has_manifest || accelerate::find_model(opened, 0).has_value();
}

std::vector<std::string> names_in(const fs::path& folder) {
  if (is_object(folder)) {
    return InputPath(folder).names();
  }
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw file_error("read the folder", folder, error.value());
  }
  return names;
}

// Sorted by number.
std::map<std::int64_t, fs::path> checkpoints_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> result;
  for (const std::string& name : names_in(folder)) {
    if (const auto number = number_of(name)) {
      result[*number] = folder / name;
    }
  }
  return result;
}

// Returns the content of `latest`, without the newline that a file written by hand may have.
// Returns "" if the file is missing or does not name a checkpoint of the series.
std::string named_by_latest(const fs::path& folder) {
  const InputPath path = InputPath(folder) / kLatest;
  // Some programs keep a symbolic link to a folder under this name.
  if (!path.is_file()) {
    return "";
  }
  constexpr std::uint64_t kLongest = 64;  // longer than any name and a line end
  std::string text = InputFile(path).text(kLongest);
  text.erase(text.find_last_not_of(" \r\n") + 1);
  return number_of(text) ? text : "";
}

}  // namespace

SeriesFolder::SeriesFolder(fs::path folder) : folder_(std::move(folder)) {}

std::optional<fs::path> SeriesFolder::newest() const {
  const std::string latest = named_by_latest(folder_);
  if (!latest.empty() && is_complete(folder_ / latest)) {
    return folder_ / latest;
  }
  std::optional<fs::path> result;
  for (const auto& [number, path] : checkpoints_in(folder_)) {
    if (is_complete(path)) {
      result = path;
    }
  }
  return result;
}

fs::path SeriesFolder::next() const {
  const auto checkpoints = checkpoints_in(folder_);
  return folder_ / name_of(checkpoints.empty() ? 0 : checkpoints.rbegin()->first + 1);
}

std::vector<std::string> SeriesFolder::committed(const fs::path& path,
                                                 std::optional<int> total_limit) const {
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  write_file(folder_ / kLatest, name, Overwrite::yes);
  std::vector<std::string> failures;
  const auto remove = [&failures](const fs::path& old) {
    try {
      remove_at_once(old);
    } catch (const Error& error) {
      failures.emplace_back(error.what());
    }
  };
  for (const std::string& left : names_in(folder_)) {
    // Objects have no temporary names.
    const bool is_unfinished =
        is_object(folder_) && number_of(left) && left != name && !is_complete(folder_ / left);
    if (is_left_behind(left) || is_unfinished) {
      remove(folder_ / left);
    }
  }
  if (!total_limit) {
    return failures;
  }
  // The checkpoint just committed always stays, so the limit applies to the others plus one.
  auto checkpoints = checkpoints_in(folder_);
  std::erase_if(checkpoints, [&](const auto& each) {
    return each.second.filename() == name || !is_complete(each.second);
  });
  while (std::ssize(checkpoints) >= std::max(*total_limit, 1)) {
    remove(checkpoints.begin()->second);
    checkpoints.erase(checkpoints.begin());
  }
  return failures;
}

}  // namespace acc::checkpoint
