// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/manifest.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/json.hpp"
#include "acc/base/json_form.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "files/json_value.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>

// The file is JSON with a fixed first line, `{"crc32": "XXXXXXXX",`. The checksum covers all bytes
// after that line, so that a reader can check the text before it parses it. See
// docs/formats/acclaunch.md.
namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

// Raised when a reader of this version could not understand the file.
constexpr std::int64_t kVersion = 1;
// Deepest nesting that is parsed. Our files need fewer levels.
constexpr int kMaxDepth = 16;
constexpr std::uint64_t kEnd = 4096;  // bytes that end_crc32_of reads

// Parts of the first line, which holds the checksum of all other lines.
constexpr std::string_view kCrcBegin = "{\"crc32\": \"";
constexpr std::string_view kCrcEnd = "\",\n";
constexpr std::size_t kCrcDigits = 8;
constexpr std::size_t kFirstLine = kCrcBegin.size() + kCrcDigits + kCrcEnd.size();

std::string hex(std::uint32_t value) {
  return fmt::format("{:08x}", value);
}

std::uint32_t crc_of(std::string_view text) {
  return crc32(0, std::as_bytes(std::span(text)));
}

// Returns a JSON number, or a string for values that JSON cannot express.
json number(double value) {
  return std::isfinite(value) ? json(value)
                              : json(std::isnan(value) ? "nan"
                                     : value < 0       ? "-inf"
                                                       : "inf");
}

json file_entry(const Manifest::File& file) {
  json entry = {{"path", file.path}, {"nbytes", file.nbytes}};
  if (file.crc32) {
    entry["crc32"] = hex(*file.crc32);
  }
  if (file.end_crc32) {
    entry["end_crc32"] = hex(*file.end_crc32);
  }
  return entry;
}

/// of_model: the manifest for model 0, a Manifest::Training for another one.
json training_entry(const auto& of_model) {
  json scaler = json::object();
  for (const auto& [name, value] : of_model.loss_scaler) {
    scaler[name] = number(value);
  }
  return {{"step", of_model.step},
          {"skipped_steps", of_model.skipped_steps},
          {"optimizer", of_model.optimizer},
          {"loss_scaler", std::move(scaler)}};
}

json body_of(const Manifest& manifest) {
  json others = json::array();
  for (const Manifest::Training& each : manifest.others) {
    others.push_back(training_entry(each));
  }
  json files = json::array();
  for (const Manifest::File& file : manifest.files) {
    files.push_back(file_entry(file));
  }
  json body = training_entry(manifest);
  body.update({{"version", kVersion},
               {"writer", manifest.writer},
               {"state_dict", manifest.state_dict},
               {"strategy", manifest.strategy},
               {"world_size", manifest.world_size},
               {"others", std::move(others)},
               {"aliases", manifest.aliases},
               {"local_layout", manifest.local_layout},
               {"files", std::move(files)}});
  return body;
}

// Writes one plan per line, however long the line is. With json::dump every number of the plans'
// nested lists would get its own line.
std::string lines_of(const std::map<std::string, std::string>& plans) {
  std::string text;
  for (const auto& [folder, plan] : plans) {
    text += (text.empty() ? "" : ",") + ("\n  " + text_of_json(json(folder))) + ": " + plan;
  }
  return "{" + text + "\n }";
}

// True if the path is relative and cannot lead out of the folder ("..", an absolute path, a NUL
// byte).
bool stays_inside(const std::string& text) {
  const fs::path path(text);
  return !text.empty() && text.find('\0') == std::string::npos && path.is_relative() &&
         std::ranges::none_of(path, [](const fs::path& part) {
           return part.empty() || part == "." || part == "..";
         });
}

std::vector<Manifest::File> parse_files(const JsonValue& list) {
  std::vector<Manifest::File> files;
  std::set<std::string> paths;
  for (const JsonValue& entry : list.elements()) {
    Manifest::File& file = files.emplace_back();
    file.path = entry["path"].text();
    entry["path"].expect(stays_inside(file.path), "a path in the folder");
    entry["path"].expect(paths.insert(file.path).second, "a different path in every entry");
    file.nbytes = static_cast<std::uint64_t>(entry["nbytes"].integer(0));
    if (entry.contains("crc32")) {
      file.crc32 = entry["crc32"].crc();
    }
    if (entry.contains("end_crc32")) {
      file.end_crc32 = entry["end_crc32"].crc();
    }
  }
  return files;
}

void parse_training(const JsonValue& entry, auto& of_model) {
  of_model.step = entry["step"].integer(0);
  of_model.skipped_steps = entry["skipped_steps"].integer(0);
  of_model.optimizer = entry["optimizer"].text();
  for (const auto& [name, value] : entry["loss_scaler"].members()) {
    of_model.loss_scaler[name] = value.real();
  }
}

Manifest parse_body(const JsonValue& root) {
  Manifest manifest;
  manifest.writer = root["writer"].text();
  manifest.state_dict = root["state_dict"].text();
  manifest.strategy = root["strategy"].text();
  manifest.world_size =
      static_cast<int>(root["world_size"].integer(1, std::numeric_limits<int>::max()));
  parse_training(root, manifest);
  for (const JsonValue& each : root["others"].elements()) {
    parse_training(each, manifest.others.emplace_back());
  }
  for (const auto& [name, value] : root["aliases"].members()) {
    manifest.aliases[name] = value.text();
  }
  manifest.local_layout = root["local_layout"].text();
  manifest.files = parse_files(root["files"]);
  if (root.contains("plans")) {
    for (const auto& [folder, plan] : root["plans"].members()) {
      manifest.plans[folder] = plan.object();
    }
  }
  return manifest;
}

// Detects any changed byte, including one that leaves the JSON valid.
void check_crc(std::string_view text, const fs::path& path) {
  const bool whole = text.size() > kFirstLine && text.starts_with(kCrcBegin) &&
                     text.substr(kCrcBegin.size() + kCrcDigits).starts_with(kCrcEnd);
  if (!whole) {
    fail(path, "damaged: it does not begin with its checksum");
  }
  const std::string stored(text.substr(kCrcBegin.size(), kCrcDigits));
  const std::string found = hex(crc_of(text.substr(kFirstLine)));
  if (stored != found) {
    fail(path, "damaged: its checksum is " + found + ", " + stored + " expected");
  }
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  // dump(1) begins with "{\n". Both are replaced by the line with the checksum.
  try {
    std::string body = text_of_json(body_of(manifest), 1).substr(2);
    if (!manifest.plans.empty()) {
      body.replace(body.size() - 2, 2, ",\n \"plans\": " + lines_of(manifest.plans) + "\n}");
    }
    body += "\n";
    return std::string(kCrcBegin) + hex(crc_of(body)) + std::string(kCrcEnd) + body;
  } catch (const json::exception&) {
    throw Error(Errc::not_supported,
                std::string("cannot write ") + kManifestFile + ": a name in it is not UTF-8");
  }
}

Manifest parse_manifest(std::string_view text, const fs::path& path) {
  check_crc(text, path);
  json root;
  try {
    // The limit protects JsonValue::expect, which prints a value recursively for its message.
    if (json_form(text).depth > kMaxDepth) {
      fail(path, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    root = json_from_text<json>(text);
  } catch (const json::exception& error) {
    fail(path, "damaged: " + text_of_fault(error));
  }
  const JsonValue value(root, path, "");
  const std::int64_t version = value["version"].integer(0);
  if (version != kVersion) {
    throw Unreadable(path.string() + ": has version " + std::to_string(version) +
                     ", this build reads version " + std::to_string(kVersion));
  }
  return parse_body(value);
}

std::optional<Manifest> read_manifest(const InputPath& folder) {
  const InputPath path = folder / kManifestFile;
  if (!path.exists()) {
    return std::nullopt;
  }
  return parse_manifest(InputFile(path).text(), path);
}

void check_size(const Manifest::File& file, const InputPath& folder) {
  const InputPath path = folder / file.path;
  const std::uint64_t nbytes = path.nbytes();
  if (nbytes != file.nbytes) {
    fail(path, "has " + std::to_string(nbytes) + " bytes, " + std::to_string(file.nbytes) +
                   " expected by " + kManifestFile);
  }
}

// The slash keeps "optimizer_1" from matching files of "optimizer_10".
bool is_in(const Manifest::File& file, const std::string& part) {
  return file.path == part || file.path.starts_with(part + "/");
}

void check_sizes(const Manifest& manifest, const InputPath& folder, const std::string& part) {
  for (const Manifest::File& file : manifest.files) {
    if (part.empty() || is_in(file, part)) {
      check_size(file, folder);
    }
  }
}

std::uint32_t end_crc32_of(const InputFile& file) {
  const std::uint64_t nbytes = std::min(file.nbytes(), kEnd);
  return crc32_of(file, file.nbytes() - nbytes, nbytes);
}

void check_file(const Manifest::File& file, const InputPath& folder) {
  if (!file.crc32 && !file.end_crc32) {
    return;
  }
  const InputFile opened(folder / file.path);
  if (file.end_crc32 && end_crc32_of(opened) != *file.end_crc32) {
    fail(opened.path(),
         "is not what this save wrote here: the file is damaged, or of another rank, step or "
         "checkpoint");
  }
  if (!file.crc32) {
    return;
  }
  const std::uint32_t crc = crc32_of(opened, 0, opened.nbytes());
  if (crc != *file.crc32) {
    fail(opened.path(), "damaged: its checksum is " + hex(crc) + ", " + hex(*file.crc32) +
                            " expected by " + kManifestFile);
  }
}

void check_file(const Manifest& manifest, const InputPath& folder, const std::string& path) {
  const auto listed = std::ranges::find(manifest.files, path, &Manifest::File::path);
  if (listed == manifest.files.end()) {
    fail(folder / path, std::string("is not listed in ") + kManifestFile);
  }
  check_file(*listed, folder);
}

}  // namespace acc::checkpoint
