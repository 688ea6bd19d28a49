// SPDX-License-Identifier: Apache-2.0
#include "commands/trace/trace_file.hpp"

#include "acc/base/error.hpp"
#include "acc/base/input_file.hpp"
#include "acc/base/json.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace acc::launcher::commands {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Error wrong(const fs::path& path, const std::string& what) {
  return {Errc::config, fmt::format("trace: {}: {}", printable(path.string()), what)};
}

/// Returns the offset from the file's clock to Unix time, from the event that a tracer writes
/// first.
std::optional<double> clock_of(const Json& event) {
  if (event.value("name", "") != "acc_clock" || !event.contains("args")) {
    return std::nullopt;
  }
  const Json& args = event.at("args");
  if (!args.contains("unix_us") || !args.contains("steady_us")) {
    return std::nullopt;
  }
  return args.at("unix_us").get<double>() - args.at("steady_us").get<double>();
}

/// Checks the fields of an event that the commands use. `number` counts from 1.
void check_event(const fs::path& path, const Json& event, std::size_t number) {
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) {
      throw wrong(path, fmt::format("event {}: {}", number, what));
    }
  };
  const auto is_number = [&](const char* key) {
    return event.contains(key) && event.at(key).is_number();
  };
  expect(event.is_object(), "expected an object");
  expect(event.contains("ph") && event.at("ph").is_string(), "expected a text in \"ph\"");
  expect(event.contains("name") && event.at("name").is_string(), "expected a text in \"name\"");
  expect(event.contains("pid") && event.at("pid").is_number_integer(),
         "expected a rank, an integer, in \"pid\"");
  if (event.at("ph") == "X") {
    expect(is_number("ts") && is_number("dur"), "expected numbers in \"ts\" and \"dur\"");
  }
}

/// Parses the events. A rank may have been killed while it wrote: the last line is left out then,
/// with a remark.
Json parse_events(const fs::path& path, const std::string& text) {
  const auto end = text.rfind("},\n");
  if (text.ends_with("]\n") || end == std::string::npos || is_json(text)) {
    return json_from_text<Json>(text);
  }
  Json events = json_from_text<Json>(text.substr(0, end + 1) + "]");
  notice(Component::launcher, LogLevel::warn,
         "trace: ", printable(path.string()) + ": the last line is incomplete and is left out");
  return events;
}

TraceFile read_trace(const fs::path& path) {
  TraceFile trace{path, {}, std::nullopt};
  try {
    Json events = parse_events(path, read_data_file(path));
    if (!events.is_array()) {
      throw wrong(path, "expected a JSON array of events, found another value");
    }
    trace.events = std::move(events.get_ref<Json::array_t&>());
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      check_event(path, trace.events[i], i + 1);
      if (!trace.to_unix) {
        trace.to_unix = clock_of(trace.events[i]);
      }
    }
  } catch (const Json::exception& error) {
    throw wrong(path, printable(text_of_fault(error)));
  }
  return trace;
}

/// Returns the files that a path of the command line stands for.
std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::exists(path)) {
    throw Error(Errc::not_found, "trace: " + printable(path.string()) + " does not exist");
  }
  if (!fs::is_directory(path)) {
    return {path};
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".json") {
      files.push_back(entry.path());
    }
  }
  if (files.empty()) {
    throw Error(Errc::not_found, "trace: no .json file in " + printable(path.string()));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::vector<TraceFile::Span> TraceFile::spans() const {
  std::vector<Span> spans;
  for (const Json& event : events) {
    if (event.at("ph") == "X") {
      const double begin = event.at("ts").get<double>();
      spans.push_back({event.at("name"), event.value("cat", ""), event.at("pid").get<int>(), begin,
                       begin + event.at("dur").get<double>()});
    }
  }
  return spans;
}

std::vector<int> TraceFile::ranks() const {
  std::set<int> ranks;
  for (const Json& event : events) {
    ranks.insert(event.at("pid").get<int>());
  }
  return {ranks.begin(), ranks.end()};
}

std::vector<TraceFile> read_traces(std::span<const std::string> paths) {
  std::vector<TraceFile> traces;
  std::map<int, fs::path> file_of;
  for (const std::string& path : paths) {
    for (const fs::path& file : files_of(path)) {
      traces.push_back(read_trace(file));
      for (const int rank : traces.back().ranks()) {
        const auto [found, added] = file_of.try_emplace(rank, file);
        if (!added) {
          throw wrong(
              file, fmt::format("rank {} is also in {}", rank, printable(found->second.string())));
        }
      }
    }
  }
  return traces;
}

}  // namespace acc::launcher::commands
