#include "checkpoint/files/manifest.hpp"

#include "acc/base/atomic_file.hpp"
#include "checkpoint/files/crc32.hpp"
#include "checkpoint/files/input_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <span>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr std::int64_t kVersion = 1;
constexpr int kMaxDepth = 16;

// The first line of the file, which is that of the checksum of the others.
constexpr std::string_view kCrcBegin = "{\"crc32\": \"";
constexpr std::string_view kCrcEnd = "\",\n";
constexpr std::size_t kCrcDigits = 8;
constexpr std::size_t kFirstLine = kCrcBegin.size() + kCrcDigits + kCrcEnd.size();

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw Error(Errc::config, path.string() + ": " + what);
}

std::string hex(std::uint32_t value) {
  std::string digits(kCrcDigits, '0');
  for (std::size_t i = kCrcDigits; i-- > 0; value >>= 4) {
    digits[i] = "0123456789abcdef"[value & 15];
  }
  return digits;
}

std::optional<std::uint32_t> parse_hex(std::string_view digits) {
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && digits.size() == kCrcDigits ? std::optional(value) : std::nullopt;
}

std::uint32_t crc_of(std::string_view text) {
  return crc32(0, std::as_bytes(std::span(text)));
}

// JSON has no words for these.
const std::map<std::string, double> kNotFinite = {
    {"inf", std::numeric_limits<double>::infinity()},
    {"-inf", -std::numeric_limits<double>::infinity()},
    {"nan", std::numeric_limits<double>::quiet_NaN()},
};

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
  return entry;
}

json scaler_entry(const std::map<std::string, double>& state) {
  json scaler = json::object();
  for (const auto& [name, value] : state) {
    scaler[name] = number(value);
  }
  return scaler;
}

json body_of(const Manifest& manifest) {
  json others = json::array();
  for (const Manifest::Training& each : manifest.others) {
    others.push_back({{"step", each.step},
                      {"skipped_steps", each.skipped_steps},
                      {"optimizer", each.optimizer},
                      {"loss_scaler", scaler_entry(each.loss_scaler)}});
  }
  json files = json::array();
  for (const Manifest::File& file : manifest.files) {
    files.push_back(file_entry(file));
  }
  return {
      {"version", kVersion},
      {"writer", manifest.writer},
      {"state_dict", manifest.state_dict},
      {"strategy", manifest.strategy},
      {"world_size", manifest.world_size},
      {"step", manifest.step},
      {"skipped_steps", manifest.skipped_steps},
      {"optimizer", manifest.optimizer},
      {"loss_scaler", scaler_entry(manifest.loss_scaler)},
      {"others", std::move(others)},
      {"aliases", manifest.aliases},
      {"local_layout", manifest.local_layout},
      {"files", std::move(files)},
  };
}

// A value in the file, and how a message calls it: "files[3].nbytes".
class Value {
 public:
  Value(const json& value, const fs::path& path, std::string name)
      : value_(value), path_(path), name_(std::move(name)) {}

  [[nodiscard]] Value operator[](const char* key) const {
    const json& object = expect(value_.is_object(), "an object");
    const std::string name = name_.empty() ? key : name_ + "." + key;
    const auto found = object.find(key);
    if (found == object.end()) {
      checkpoint::fail(path_, "'" + name + "' is missing");
    }
    return {*found, path_, name};
  }

  [[nodiscard]] bool contains(const char* key) const { return value_.contains(key); }

  [[nodiscard]] std::string text() const {
    return expect(value_.is_string(), "a string").get<std::string>();
  }

  [[nodiscard]] std::int64_t integer(
      std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) const {
    // The parser's integers below 2^63 are signed or not; what has no 64 bits it takes for a float.
    const bool fits = value_.is_number_integer() &&
                      (!value_.is_number_unsigned() ||
                       value_.get<std::uint64_t>() <= static_cast<std::uint64_t>(most));
    const std::int64_t result = fits ? value_.get<std::int64_t>() : 0;
    expect(fits && least <= result && result <= most,
           "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return result;
  }

  [[nodiscard]] double real() const {
    if (value_.is_number()) {
      return value_.get<double>();
    }
    const auto found =
        kNotFinite.find(value_.is_string() ? value_.get_ref<const std::string&>() : "");
    expect(found != kNotFinite.end(), "a number");
    return found->second;
  }

  [[nodiscard]] std::uint32_t crc() const {
    const std::optional<std::uint32_t> value = parse_hex(text());
    expect(value.has_value(), "8 hexadecimal digits");
    return *value;
  }

  [[nodiscard]] std::map<std::string, Value> members() const {
    std::map<std::string, Value> result;
    for (const auto& [key, value] : expect(value_.is_object(), "an object").items()) {
      result.try_emplace(key, value, path_, name_ + "." + key);
    }
    return result;
  }

  [[nodiscard]] std::vector<Value> elements() const {
    std::vector<Value> result;
    for (const json& value : expect(value_.is_array(), "a list")) {
      result.emplace_back(value, path_, name_ + "[" + std::to_string(result.size()) + "]");
    }
    return result;
  }

  const json& expect(bool right, const std::string& expected) const {
    if (!right) {
      constexpr std::size_t kShown = 60;
      const std::string found =
          value_.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, kShown);
      checkpoint::fail(path_, (name_.empty() ? "" : "'" + name_ + "': ") + expected +
                                  " expected, found " + found);
    }
    return value_;
  }

 private:
  const json& value_;
  const fs::path& path_;
  std::string name_;
};

// It must not lead out of the folder.
bool stays_inside(const std::string& text) {
  const fs::path path(text);
  return !text.empty() && text.find('\0') == std::string::npos && path.is_relative() &&
         std::ranges::none_of(path, [](const fs::path& part) {
           return part.empty() || part == "." || part == "..";
         });
}

std::vector<Manifest::File> parse_files(const Value& list) {
  std::vector<Manifest::File> files;
  std::set<std::string> paths;
  for (const Value& entry : list.elements()) {
    Manifest::File& file = files.emplace_back();
    file.path = entry["path"].text();
    entry["path"].expect(stays_inside(file.path), "a path in the folder");
    entry["path"].expect(paths.insert(file.path).second, "another path in every entry");
    file.nbytes = static_cast<std::uint64_t>(entry["nbytes"].integer(0));
    if (entry.contains("crc32")) {
      file.crc32 = entry["crc32"].crc();
    }
  }
  return files;
}

std::map<std::string, double> parse_scaler(const Value& scaler) {
  std::map<std::string, double> state;
  for (const auto& [name, value] : scaler.members()) {
    state[name] = value.real();
  }
  return state;
}

Manifest parse_body(const Value& root) {
  Manifest manifest;
  manifest.writer = root["writer"].text();
  manifest.state_dict = root["state_dict"].text();
  manifest.strategy = root["strategy"].text();
  manifest.world_size =
      static_cast<int>(root["world_size"].integer(1, std::numeric_limits<int>::max()));
  manifest.step = root["step"].integer(0);
  manifest.skipped_steps = root["skipped_steps"].integer(0);
  manifest.optimizer = root["optimizer"].text();
  manifest.loss_scaler = parse_scaler(root["loss_scaler"]);
  for (const Value& each : root["others"].elements()) {
    manifest.others.push_back({each["step"].integer(0), each["skipped_steps"].integer(0),
                               each["optimizer"].text(), parse_scaler(each["loss_scaler"])});
  }
  for (const auto& [name, value] : root["aliases"].members()) {
    manifest.aliases[name] = value.text();
  }
  manifest.local_layout = root["local_layout"].text();
  manifest.files = parse_files(root["files"]);
  return manifest;
}

// Any changed byte shows, also one that JSON would not mind.
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

std::string text_of(const fs::path& path) {
  const InputFile file(path);
  std::string text(file.nbytes(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  try {
    const std::string body = body_of(manifest).dump(1).substr(2) + "\n";  // without "{\n"
    return std::string(kCrcBegin) + hex(crc_of(body)) + std::string(kCrcEnd) + body;
  } catch (const json::exception&) {
    throw Error(Errc::config,
                std::string("cannot write ") + kManifestFile + ": a name in it is not UTF-8");
  }
}

Manifest parse_manifest(std::string_view text, const fs::path& path) {
  check_crc(text, path);
  json root;
  try {
    // Deeper than any of ours: what prints a value for a message would recurse as deep.
    root = json::parse(text, [&](int depth, json::parse_event_t, const json&) {
      if (depth > kMaxDepth) {
        fail(path, "nested deeper than a manifest can be");
      }
      return true;
    });
  } catch (const json::exception& error) {
    fail(path, std::string("damaged: ") + error.what());
  }
  const Value value(root, path, "");
  const std::int64_t version = value["version"].integer(0);
  if (version != kVersion) {
    fail(path, "is of version " + std::to_string(version) + ", this build reads version " +
                   std::to_string(kVersion));
  }
  return parse_body(value);
}

std::optional<Manifest> read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) {
    return std::nullopt;
  }
  Manifest manifest = parse_manifest(text_of(path), path);
  for (const Manifest::File& file : manifest.files) {
    const fs::path listed = folder / file.path;
    const std::uintmax_t nbytes = fs::file_size(listed, error);
    if (error) {
      throw file_error("read", listed, error.value());
    }
    if (nbytes != file.nbytes) {
      fail(listed, "has " + std::to_string(nbytes) + " bytes, " + std::to_string(file.nbytes) +
                       " expected by " + kManifestFile);
    }
  }
  return manifest;
}

void check_file(const Manifest& manifest, const fs::path& folder, const std::string& path) {
  const fs::path whole_path = folder / path;
  const auto listed = std::ranges::find(manifest.files, path, &Manifest::File::path);
  if (listed == manifest.files.end()) {
    fail(whole_path, std::string("is no file that ") + kManifestFile + " lists");
  }
  if (!listed->crc32) {
    return;
  }
  const InputFile file(whole_path);
  std::vector<std::byte> block(std::min<std::uint64_t>(file.nbytes(), 1 << 20));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < file.nbytes(); at += block.size()) {
    const auto part = std::span(block).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), file.nbytes() - at)));
    file.read(at, part);
    crc = crc32(crc, part);
  }
  if (crc != *listed->crc32) {
    fail(whole_path, "damaged: its checksum is " + hex(crc) + ", " + hex(*listed->crc32) +
                         " expected by " + kManifestFile);
  }
}

}  // namespace acc::checkpoint
