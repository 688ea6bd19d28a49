// SPDX-License-Identifier: Apache-2.0
#include "commands/data/record.hpp"

#include "acc/base/error.hpp"
#include "acc/base/input_file.hpp"
#include "acc/base/json.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <regex>

namespace acc::launcher::commands::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kLargest = std::int64_t{1} << 61U;  ///< sums of two do not overflow
constexpr std::int64_t kLargestBatch = std::int64_t{1}
                                       << 40U;  ///< nor those of millions of batches
constexpr std::int64_t kLargestBlock = 65536;

/// A value of a line that is not as expected.
struct Unexpected {
  std::string expected;
};

const Json& member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) {
    throw Unexpected{fmt::format("a value '{}'", key)};
  }
  return *found;
}

std::int64_t integer(const Json& value, const char* what, std::int64_t least = 0,
                     std::int64_t most = kLargest) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) ||
      value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
    throw Unexpected{fmt::format("{}: an integer from {} to {}", what, least, most)};
  }
  return value.get<std::int64_t>();
}

std::string text(const Json& value, const char* what) {
  if (!value.is_string()) {
    throw Unexpected{fmt::format("{}: a text", what)};
  }
  return value.get<std::string>();
}

const Json& list(const Json& value, const char* what, std::size_t size = 0) {
  if (!value.is_array() || (size != 0 && value.size() != size)) {
    throw Unexpected{
        fmt::format("{}: a list{}", what, size == 0 ? "" : fmt::format(" of {}", size))};
  }
  return value;
}

Position position(const Json& value, const char* what) {
  list(value, what, 3);
  return {integer(value[0], what), integer(value[1], what), integer(value[2], what)};
}

RankRecord header(const Json& line) {
  if (integer(member(line, "version"), "version") != 1) {
    throw Unexpected{"version 1"};
  }
  RankRecord record;
  record.name = text(member(line, "name"), "name");
  record.attempt = text(member(line, "attempt"), "attempt");
  const Json& from = member(line, "from");
  record.from = from.is_null() ? "" : text(from, "from");
  record.at = position(member(line, "at"), "at");
  record.world_size = integer(member(line, "world_size"), "world_size", 1);
  record.rank = integer(member(line, "rank"), "rank");
  if (record.rank >= record.world_size) {
    throw Unexpected{"a rank below world_size"};
  }
  const Json& time = member(line, "time");
  if (!time.is_number()) {
    throw Unexpected{"time: a number"};
  }
  record.time = time.get<double>();
  record.last_batch = text(member(line, "last_batch"), "last_batch");
  for (const Json& source : list(member(line, "sources"), "sources")) {
    record.sources.push_back({integer(member(source, "samples"), "samples", -1),
                              integer(member(source, "per_block"), "per_block", 1, kLargestBlock)});
  }
  if (record.sources.empty()) {
    throw Unexpected{"sources: at least one"};
  }
  return record;
}

Batch batch(const Json& line, std::size_t num_sources) {
  Batch result;
  result.at = position(member(line, "at"), "at");
  result.next = position(member(line, "next"), "next");
  result.size = integer(member(line, "size"), "size", 0, kLargestBatch);
  if (!(result.at < result.next)) {
    throw Unexpected{"a position 'next' behind 'at'"};
  }
  result.is_packed = text(member(line, "kind"), "kind") == "packed";
  if (result.is_packed) {
    for (const Json& piece : list(member(line, "pieces"), "pieces")) {
      list(piece, "a piece", 5);
      result.pieces.push_back({integer(piece[0], "epoch"), integer(piece[1], "document"),
                               integer(piece[2], "offset"), integer(piece[3], "length", 1),
                               integer(piece[4], "total", 1)});
    }
    return result;
  }
  result.padding = integer(member(line, "padding"), "padding", 0, result.size);
  std::size_t count = 0;
  for (const Json& group : list(member(line, "samples"), "samples")) {
    list(group, "samples of a source", 3);
    Samples samples{integer(group[0], "source"), integer(group[1], "epoch")};
    if (samples.source >= static_cast<std::int64_t>(num_sources)) {
      throw Unexpected{fmt::format("a source below {}", num_sources)};
    }
    for (const Json& number : list(group[2], "numbers of samples")) {
      samples.numbers.push_back(integer(number, "number of a sample"));
    }
    count += samples.numbers.size();
    result.samples.push_back(std::move(samples));
  }
  if (const auto hashes = line.find("hashes"); hashes != line.end()) {
    list(*hashes, "hashes");
    if (hashes->size() != count) {
      throw Unexpected{fmt::format("{} hashes, one for each sample", count)};
    }
    auto hash = hashes->begin();
    for (Samples& samples : result.samples) {
      for (std::size_t i = 0; i < samples.numbers.size(); ++i, ++hash) {
        if (!hash->is_number_unsigned()) {
          throw Unexpected{"hashes: integers from 0 to 2^64 - 1"};
        }
        samples.hashes.push_back(hash->get<std::uint64_t>());
      }
    }
  }
  return result;
}

void add_line(std::string_view line, const std::string& path, std::size_t number,
              std::vector<RankRecord>& records) {
  const std::string place = fmt::format("{}, line {}", printable(path), number);
  try {
    const Json object = json_from_text<Json>(line, nullptr, false);
    if (!object.is_object()) {
      throw Unexpected{"a JSON object"};
    }
    const std::string kind = text(member(object, "kind"), "kind");
    if (kind == "attempt") {
      records.push_back(header(object));
      records.back().place = place;
    } else if (kind == "batch" || kind == "packed") {
      if (records.empty()) {
        throw Unexpected{"a first line of the kind 'attempt'"};
      }
      records.back().batches.push_back(batch(object, records.back().sources.size()));
    } else {
      throw Unexpected{"the kind 'attempt', 'batch' or 'packed'"};
    }
  } catch (const Unexpected& error) {
    throw Error(Errc::config,
                fmt::format("data check: {}: expected {}, found {}", place, error.expected,
                            printable(line.size() > 120 ? std::string(line.substr(0, 120)) + "…"
                                                        : std::string(line))));
  }
}

}  // namespace

std::vector<RankRecord> parse_record(std::string_view content, const std::string& path,
                                     std::vector<std::string>& remarks) {
  std::vector<RankRecord> records;
  for (std::size_t number = 1; !content.empty(); ++number) {
    const auto end = content.find('\n');
    if (end == std::string_view::npos) {
      remarks.push_back(
          fmt::format("{}, line {}: is not complete and was left out", printable(path), number));
      break;
    }
    add_line(content.substr(0, end), path, number, records);
    content.remove_prefix(end + 1);
  }
  return records;
}

std::vector<RankRecord> read_records(std::span<const std::string> folders,
                                     std::vector<std::string>& remarks) {
  static const std::regex pattern(R"(.*\.rank\d+\.jsonl)");
  std::vector<fs::path> files;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      if (std::regex_match(at->path().filename().string(), pattern)) {
        files.push_back(at->path());
      }
    }
    if (error) {
      throw Error(Errc::not_found, fmt::format("data check: cannot read the folder {}: {}",
                                               printable(folder), error.message()));
    }
  }
  if (files.empty()) {
    throw Error(Errc::not_found,
                fmt::format("data check: {} has no record: start the training with --data_record "
                            "DIR, and use DataOrder or acclaunch.data in the program",
                            printable(folders.front())));
  }
  std::ranges::sort(files);
  std::vector<RankRecord> all;
  for (const fs::path& file : files) {
    std::ranges::move(parse_record(read_data_file(file), file.string(), remarks),
                      std::back_inserter(all));
  }
  return all;
}

}  // namespace acc::launcher::commands::data
