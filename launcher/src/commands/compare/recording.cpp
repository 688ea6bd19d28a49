// SPDX-License-Identifier: Apache-2.0
#include "commands/compare/recording.hpp"

#include "acc/base/error.hpp"
#include "acc/base/input_file.hpp"
#include "acc/base/json.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

namespace acc::launcher::commands::compare {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kVersion = 1;
/// Steps and micro-steps beyond this are no numbers of a recording.
constexpr double kMostSteps = 1e9;
constexpr std::array<std::string_view, kPhases> kPhaseNames = {"weights",  "buffer",   "forward",
                                                               "backward", "gradient", "updated"};

Error damaged(const std::string& what) {
  return {Errc::config, what};
}

const Json& field(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) {
    throw damaged(fmt::format("the key \"{}\" is missing", key));
  }
  return *found;
}

double number_of(const Json& value, const char* key) {
  if (value.is_number()) {
    return value.get<double>();
  }
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text == "nan") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (text == "inf" || text == "-inf") {
    return (text == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
  }
  throw damaged(fmt::format("\"{}\": expected a number", key));
}

double number(const Json& object, const char* key) {
  return number_of(field(object, key), key);
}

int whole_number(const Json& object, const char* key) {
  const double value = number(object, key);
  if (!(value >= 0.0 && value <= kMostSteps)) {
    throw damaged(fmt::format("\"{}\": expected a number from 0 to {:.0f}", key, kMostSteps));
  }
  return static_cast<int>(value);
}

std::string text(const Json& object, const char* key) {
  const Json& value = field(object, key);
  if (!value.is_string()) {
    throw damaged(fmt::format("\"{}\": expected a text", key));
  }
  return value.get<std::string>();
}

const Json& list(const Json& object, const char* key) {
  const Json& value = field(object, key);
  if (!value.is_array()) {
    throw damaged(fmt::format("\"{}\": expected a list", key));
  }
  return value;
}

const Json& object_in(const Json& object, const char* key) {
  const Json& value = field(object, key);
  if (!value.is_object()) {
    throw damaged(fmt::format("\"{}\": expected an object", key));
  }
  return value;
}

std::vector<std::int64_t> shape_in(const Json& object) {
  std::vector<std::int64_t> shape;
  for (const Json& size : list(object, "shape")) {
    if (!size.is_number_integer() || size.get<std::int64_t>() < 0) {
      throw damaged("\"shape\": expected numbers from 0");
    }
    shape.push_back(size.get<std::int64_t>());
  }
  return shape;
}

int step_in(const Json& object) {
  return whole_number(object, "step");
}

int micro_step_in(const Json& object) {
  return object.contains("micro_step") ? whole_number(object, "micro_step") : 0;
}

void read_value(Value& value, const Json& object) {
  value.dtype = text(object, "dtype");
  value.squares = number(object, "squares");
  const Json& sketch = list(object, "sketch");
  if (sketch.size() != value.sketch.size()) {
    throw damaged("\"sketch\": expected four numbers");
  }
  std::ranges::transform(sketch, value.sketch.begin(),
                         [](const Json& each) { return number_of(each, "sketch"); });
}

TensorLine tensor_line(const Json& object, Phase phase) {
  TensorLine line;
  read_value(line, object);
  line.count = number(object, "count");
  line.step = step_in(object);
  line.phase = phase;
  line.name = text(object, "name");
  line.whole = line.count;
  if (object.contains("begin")) {
    line.begin = number(object, "begin");
    line.whole = 1.0;
    for (const std::int64_t size : shape_in(object)) {
      line.whole *= static_cast<double>(size);
    }
  }
  return line;
}

DataLine data_line(const Json& object) {
  DataLine line;
  line.step = step_in(object);
  line.micro_step = micro_step_in(object);
  line.name = text(object, "name");
  line.dtype = text(object, "dtype");
  line.shape = shape_in(object);
  const Json& exact = list(object, "exact");
  if (exact.size() != 2 || !exact[0].is_number_integer() || !exact[1].is_number_integer()) {
    throw damaged("\"exact\": expected two integers");
  }
  line.exact = static_cast<std::uint64_t>(exact[0].get<std::int64_t>());
  if (object.contains("sketch")) {
    read_value(line.value.emplace(), object);
  }
  line.is_training = !object.contains("training") || object.at("training") != Json(false);
  return line;
}

/// `groups`: the lines before, which have the names if this one does not.
GroupLine group_line(const Json& object, const std::vector<GroupLine>& groups) {
  GroupLine line;
  line.step = step_in(object);
  line.optimizer = text(object, "optimizer");
  for (const auto& [key, value] : object_in(object, "settings").items()) {
    line.settings[key] = lossy_text_of_json(value);
  }
  line.number = object.contains("number") ? whole_number(object, "number") : 0;
  if (object.contains("names")) {
    for (const Json& name : list(object, "names")) {
      line.names.push_back(name.is_string() ? name.get<std::string>() : "");
    }
  } else {
    const auto before = std::find_if(groups.rbegin(), groups.rend(), [&](const GroupLine& each) {
      return each.number == line.number && each.optimizer == line.optimizer;
    });
    line.names = before == groups.rend() ? line.names : before->names;
  }
  return line;
}

ModelLine model_line(const Json& object) {
  ModelLine line;
  line.name = text(object, "name");
  line.wrapper = text(object, "wrapper");
  for (const Json& each : list(object, "parameters")) {
    const bool is_trained = !each.contains("trained") || each.at("trained") != Json(false);
    ModelParameter parameter{text(each, "name"), shape_in(each), text(each, "dtype"), is_trained,
                             ""};
    if (const auto same = each.find("same_as"); same != each.end() && same->is_string()) {
      parameter.same_as = same->get<std::string>();
    }
    line.parameters.push_back(std::move(parameter));
  }
  if (object.contains("buffers")) {
    for (const Json& each : list(object, "buffers")) {
      line.buffers.push_back(text(each, "name"));
    }
  }
  if (object.contains("modules")) {
    for (const Json& each : list(object, "modules")) {
      const auto rate = each.find("rate");
      const bool has_rate = rate != each.end() && rate->is_number();
      line.modules.push_back({text(each, "name"), text(each, "class"),
                              has_rate ? rate->get<double>() > 0.0 : rate != each.end(),
                              has_rate ? rate->get<double>() : 0.0});
    }
  }
  return line;
}

void read_program(RankRecording& recording, const Json& object) {
  if (const double version = number(object, "version"); version != kVersion) {
    throw damaged(fmt::format(
        "the recording has version {}, this acclaunch reads version {}; record it again", version,
        kVersion));
  }
  recording.rank = whole_number(object, "rank");
  recording.world_size = whole_number(object, "world_size");
  recording.engine = text(object, "engine");
  if (const auto random = object.find("random"); random != object.end() && random->is_string()) {
    recording.random = random->get<std::string>();
  }
  if (object.contains("framework")) {
    for (const auto& [name, version] : object_in(object, "framework").items()) {
      recording.framework[name] = version.is_string() ? version.get<std::string>() : "";
    }
  }
}

void read_object(RankRecording& recording, const Json& object) {
  const std::string kind = text(object, "kind");
  if (kind == "program") {
    read_program(recording, object);
  } else if (kind == "model") {
    recording.models.push_back(model_line(object));
  } else if (kind == "data") {
    recording.data.push_back(data_line(object));
  } else if (kind == "tensor") {
    const auto phase = std::ranges::find(kPhaseNames, text(object, "phase"));
    if (phase != kPhaseNames.end()) {
      recording.tensors.push_back(
          tensor_line(object, static_cast<Phase>(phase - kPhaseNames.begin())));
    }
  } else if (kind == "loss") {
    recording.losses.push_back({step_in(object), micro_step_in(object), number(object, "value"),
                                object.contains("scale") ? number(object, "scale") : 1.0});
  } else if (kind == "clip") {
    const auto norm = object.find("norm");
    recording.clips.push_back({step_in(object), text(object, "function"), number(object, "limit"),
                               norm == object.end() || norm->is_null()
                                   ? std::nullopt
                                   : std::optional(number(object, "norm"))});
  } else if (kind == "group") {
    recording.groups.push_back(group_line(object, recording.groups));
  } else if (kind == "step") {
    const auto skipped = object.find("skipped");
    recording.steps.push_back({step_in(object), skipped != object.end() && *skipped == Json(true),
                               whole_number(object, "parameters")});
  } else if (kind == "end") {
    recording.has_ended = true;
  }
}

/// The number in a name such as rank_12.jsonl or rank_12.runtime0.jsonl.
std::optional<int> rank_in(const fs::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kBefore = "rank_";
  constexpr std::string_view kAfter = ".jsonl";
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter) ||
      name.size() <= kBefore.size() + kAfter.size()) {
    return std::nullopt;
  }
  const std::string_view inside =
      std::string_view(name).substr(kBefore.size(), name.size() - kBefore.size() - kAfter.size());
  return read_number(inside.substr(0, inside.find('.')));
}

/// Adds what libacc_runtime has recorded of an optimizer to what else this rank has recorded.
void merge(RankRecording& rank, RankRecording more) {
  const auto append = [](auto& all, auto&& added) {
    all.insert(all.end(), std::move_iterator(added.begin()), std::move_iterator(added.end()));
  };
  std::erase_if(more.models, [&](const ModelLine& each) {
    return std::ranges::find(rank.models, each.name, &ModelLine::name) != rank.models.end();
  });
  append(rank.models, more.models);
  append(rank.data, more.data);
  append(rank.tensors, more.tensors);
  append(rank.losses, more.losses);
  append(rank.clips, more.clips);
  append(rank.groups, more.groups);
  append(rank.steps, more.steps);
  rank.has_ended = rank.has_ended || more.has_ended;
}

void check_ranks(const fs::path& folder, const std::vector<RankRecording>& ranks) {
  const int world_size = ranks.front().world_size;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].world_size != world_size) {
      throw Error(Errc::config,
                  fmt::format("{}: rank {} is of a training with {} ranks, and rank {} of one with "
                              "{}; the folder has files of several trainings",
                              printable(folder.string()), ranks[0].rank, world_size, ranks[i].rank,
                              ranks[i].world_size));
    }
    if (ranks[i].rank != static_cast<int>(i)) {
      throw Error(Errc::config,
                  fmt::format("{}: the file of rank {} is missing", printable(folder.string()), i));
    }
  }
  if (static_cast<int>(ranks.size()) != world_size) {
    throw Error(Errc::config, fmt::format("{}: has files of {} ranks, and the training had {}",
                                          printable(folder.string()), ranks.size(), world_size));
  }
}

}  // namespace

RankRecording read_rank(const std::string& file, const std::string& text) {
  RankRecording recording;
  std::size_t number = 0;
  bool has_program = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trimmed(std::string_view(text).substr(at, end - at));
    const bool is_torn = end == text.size();
    at = end + 1;
    ++number;
    if (line.empty()) {
      continue;
    }
    try {
      const Json object = json_from_text<Json>(line, nullptr, false);
      if (object.is_discarded() && is_torn) {
        break;
      }
      if (!object.is_object()) {
        throw damaged("expected a JSON object");
      }
      read_object(recording, object);
      if (!has_program && object.at("kind") != "program") {
        throw damaged("expected a line of kind \"program\" first");
      }
      has_program = true;
    } catch (const std::exception& error) {  // of this file, or of the JSON library
      throw Error(Errc::config,
                  fmt::format("{}, line {}: {}", printable(file), number, printable(error.what())));
    }
  }
  if (!has_program) {
    throw Error(Errc::config, printable(file) + ": no complete line");
  }
  return recording;
}

std::vector<RankRecording> read_recording(const fs::path& folder) {
  std::error_code error;
  std::vector<std::pair<int, fs::path>> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto rank = rank_in(entry->path())) {
      files.emplace_back(*rank, entry->path());
    }
  }
  if (error) {
    throw Error(Errc::not_found,
                "cannot open the folder " + printable(folder.string()) + ": " + error.message());
  }
  if (files.empty()) {
    throw Error(Errc::not_found,
                printable(folder.string()) + " has no recording: no file rank_0.jsonl");
  }
  std::ranges::sort(files);
  std::vector<RankRecording> ranks;
  for (const auto& [rank, path] : files) {
    RankRecording found = read_rank(path.string(), read_data_file(path));
    if (found.rank != rank) {
      throw Error(Errc::config, printable(path.string()) + ": is the file of another rank");
    }
    if (!ranks.empty() && ranks.back().rank == rank) {
      merge(ranks.back(), std::move(found));
    } else {
      ranks.push_back(std::move(found));
    }
  }
  check_ranks(folder, ranks);
  return ranks;
}

}  // namespace acc::launcher::commands::compare
