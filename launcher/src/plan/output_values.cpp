// SPDX-License-Identifier: Apache-2.0
// Output options in torchrun's notation (-r, -t, --local-ranks-filter, --log-dir): which streams of
// which local ranks go to files and to the console. Streams are bit masks, as in torchrun's `Std`.
#include "plan/output_values.hpp"

#include "acc/launcher/host_facts.hpp"
#include "acc/settings/faults.hpp"

#include <algorithm>
#include <random>

namespace acc::launcher::plan {
namespace {

namespace fs = std::filesystem;
using settings::Faults;
using Streams = OutputPlan::Streams;

constexpr Streams kBoth = OutputPlan::kBoth;

/// Parses one digit 0..3.
std::optional<Streams> read_digit(std::string_view text) {
  const auto value = read_number(text);
  return text.size() == 1 && value && *value <= static_cast<int>(kBoth)
             ? std::optional(static_cast<Streams>(*value))
             : std::nullopt;
}

/// Returns the run id with a random suffix, as torchrun names the folder of a run, with the host
/// name between them: machines may share a file system.
std::string folder_name(const std::string& run_id) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  std::string name = run_id + "_" + host_name() + "_";
  for (int i = 0; i < 8; ++i) {
    name += kLetters[letter(random)];
  }
  std::ranges::replace(name, '/', '_');
  return name;
}

/// False for --log-dir /dev/null, which disables all log files.
bool wants_files(const OutputWords& words) {
  return words.log_dir.value != "/dev/null";
}

/// Combines the options: a redirected stream leaves the console, a tee'd stream goes to both, and a
/// rank that the filter hides has no console output. Vectors that only repeat the default stay
/// empty.
OutputPlan routed(const std::vector<Streams>& redirects, const std::vector<Streams>& tee,
                  const std::vector<int>& shown) {
  OutputPlan output;
  for (std::size_t rank = 0; rank < redirects.size(); ++rank) {
    const bool hidden =
        !shown.empty() && std::ranges::find(shown, static_cast<int>(rank)) == shown.end();
    output.to_file.push_back(redirects[rank] | tee[rank]);
    output.to_console.push_back(hidden ? 0 : (kBoth & ~redirects[rank]) | tee[rank]);
  }
  if (std::ranges::all_of(output.to_file, [](Streams streams) { return streams == 0; })) {
    output.to_file.clear();
  }
  if (std::ranges::all_of(output.to_console, [](Streams streams) { return streams == kBoth; })) {
    output.to_console.clear();
  }
  return output;
}

fs::path log_folder(const OutputWords& words, const fs::path& working_directory,
                    const fs::path& scratch) {
  if (words.log_dir.value.empty() || !wants_files(words)) {
    return scratch;
  }
  return named_folder(words.log_dir, working_directory);
}

}  // namespace

fs::path named_folder(const Sourced<std::string>& given, const fs::path& working_directory) {
  if (given.value.empty()) {
    return {};
  }
  fs::path folder = working_directory / given.value;
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    throw bad_value(given, "a folder, not a file");
  }
  return folder;
}

std::vector<Streams> read_streams(const Sourced<std::string>& given, int local_world_size) {
  const auto count = static_cast<std::size_t>(local_world_size);
  if (const auto all = read_digit(given.value)) {
    return std::vector<Streams>(count, *all);
  }
  std::vector<Streams> result(count, 0);
  for (const std::string_view entry : entries_of(given.value)) {
    const auto colon = std::min(entry.find(':'), entry.size());
    const auto ranks = read_range(entry.substr(0, colon));
    const auto streams = read_digit(entry.substr(std::min(entry.size(), colon + 1)));
    if (!ranks || !streams) {
      throw bad_value(given,
                      "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or by local rank as in "
                      "0:3,1-7:2");
    }
    for (int rank = ranks->first; rank <= std::min(ranks->last, local_world_size - 1); ++rank) {
      result[static_cast<std::size_t>(rank)] = *streams;
    }
  }
  return result;
}

std::vector<std::string> read_filters(std::string_view text) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      words.back() += text[i];
    } else if (text.substr(i + 1).starts_with(',')) {
      words.back() += text[i++];
    } else {
      words.emplace_back();
    }
  }
  std::erase(words, "");
  return words;
}

std::vector<int> read_local_ranks(const Sourced<std::string>& given) {
  std::vector<int> ranks;
  if (given.value.empty()) {
    return ranks;
  }
  for (const std::string_view entry : entries_of(given.value)) {
    const auto rank = read_number(trimmed(entry));
    if (!rank) {
      throw bad_value(given, "local ranks joined by commas, as in 0,2");
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

OutputPlan plan_output(const OutputWords& words, const std::string& run_id, int local_world_size,
                       const fs::path& working_directory, const fs::path& scratch) {
  const auto streams = [&](const Sourced<std::string>& given) {
    auto read =
        given.value.empty() ? std::vector<Streams>() : read_streams(given, local_world_size);
    if (read.empty() || !wants_files(words)) {
      read.assign(static_cast<std::size_t>(local_world_size), 0);
    }
    return read;
  };
  Faults faults;
  std::vector<Streams> redirects;
  std::vector<Streams> tee;
  std::vector<int> shown;
  fs::path folder;
  faults.collect([&] { redirects = streams(words.redirects); });
  faults.collect([&] { tee = streams(words.tee); });
  faults.collect([&] { shown = read_local_ranks(words.local_ranks); });
  faults.collect([&] { folder = log_folder(words, working_directory, scratch); });
  faults.raise();
  OutputPlan output = routed(redirects, tee, shown);
  output.is_private = folder == scratch;
  output.keeps_directory = !output.is_private || !output.to_file.empty();
  output.directory = folder.lexically_normal().string();
  if (output.keeps_directory) {
    output.directory += "/" + folder_name(run_id);
  }
  return output;
}

}  // namespace acc::launcher::plan
