// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

// Records of the samples that a training has used (--data_record, docs/formats/data_record.md).
namespace acc::launcher::commands::data {

/// A position that all ranks have in common.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t offset = 0;
  std::int64_t token = 0;

  bool operator==(const Position&) const = default;
  bool operator<(const Position& other) const {
    return std::tie(epoch, offset, token) < std::tie(other.epoch, other.offset, other.token);
  }
};

/// Samples of one source and one of its epochs.
struct Samples {
  std::int64_t source = 0;
  std::int64_t epoch = 0;
  std::vector<std::int64_t> numbers = {};
  std::vector<std::uint64_t> hashes = {};  ///< of their contents, or empty
};

/// A part of a document.
struct Piece {
  std::int64_t epoch = 0;
  std::int64_t document = 0;
  std::int64_t offset = 0;
  std::int64_t length = 0;
  std::int64_t total = 0;
};

/// What one rank used of a batch.
struct Batch {
  Position at;
  Position next;
  std::int64_t size = 0;  ///< samples, or sequences, of all ranks
  std::int64_t padding = 0;
  bool is_packed = false;
  std::vector<Samples> samples = {};
  std::vector<Piece> pieces = {};
};

struct Source {
  std::int64_t samples = 0;  ///< -1: a stream
  std::int64_t per_block = 1;

  bool operator==(const Source&) const = default;
};

/// The lines of one rank in one attempt.
struct RankRecord {
  std::string place;  ///< file and line where they begin
  std::string attempt;
  std::string from;  ///< attempt whose checkpoint it began with; empty: none, or without a record
  std::string name;  ///< of the order
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  double time = 0.0;  ///< in seconds since 1970
  std::string last_batch;
  Position at;  ///< with which it began
  std::vector<Source> sources = {};
  std::vector<Batch> batches = {};
};

/// Parses one file. A last line without its end, of a process that was killed while it wrote, is
/// left out, with a remark. Throws Error(config) that names line, what was expected and what was
/// found.
std::vector<RankRecord> parse_record(std::string_view text, const std::string& path,
                                     std::vector<std::string>& remarks);

/// Reads all records, files "*.rank<N>.jsonl", in these folders. Throws Error(not_found) if there
/// is none.
std::vector<RankRecord> read_records(std::span<const std::string> folders,
                                     std::vector<std::string>& remarks);

/// What a record proves.
struct Verdict {
  std::vector<std::string> findings = {};  ///< lines for the user
  std::vector<std::string> problems = {};  ///< each one is a reason why it proves nothing
};

/// Checks the records of one order, by its name: follows the attempts back from the newest one, and
/// looks at the batches that no later attempt has made again.
std::map<std::string, Verdict> check(std::vector<RankRecord> records);

}  // namespace acc::launcher::commands::data
