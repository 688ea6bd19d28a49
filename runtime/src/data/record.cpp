// SPDX-License-Identifier: Apache-2.0
#include "data/record.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/log.hpp"
#include "acc/base/written_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <system_error>

namespace acc::data {
namespace {

namespace fs = std::filesystem;

const char* word_of(LastBatch last_batch) {
  switch (last_batch) {
    case LastBatch::partial: return "partial";
    case LastBatch::next_epoch: return "next_epoch";
    case LastBatch::drop: return "drop";
    case LastBatch::pad: return "pad";
  }
  return "?";
}

std::string json_of(const DataPosition& position) {
  return fmt::format("[{},{},{}]", position.epoch, position.offset, position.token);
}

fs::path path_of(const Recording& recording, const DataOptions& options) {
  return recording.folder / fmt::format("{}.{}.rank{}.jsonl",
                                        options.name.empty() ? "data" : options.name,
                                        recording.attempt, recording.rank);
}

}  // namespace

Record::Record(std::shared_ptr<const Recording> recording, const DataOptions& options,
               std::vector<std::int64_t> per_block)
    : recording_(std::move(recording)),
      options_(options),
      per_block_(std::move(per_block)),
      path_(path_of(*recording_, options)) {
  check_free();
}

void Record::check_free() const {
  std::error_code error;
  if (fs::exists(path_, error)) {
    throw Error(
        Errc::config,
        fmt::format("data record: {} exists: two orders of one program need different names "
                    "(DataOptions::name), and two jobs of a launcher other than acclaunch "
                    "need a folder each",
                    path_.string()));
  }
}

void Record::begin(const Origin& origin) {
  const Recording& now = *recording_;
  if (fs::path path = path_of(now, options_); begun_ == 0 || path != path_) {
    flush();
    path_ = std::move(path);
    file_ = UniqueFd();
    begun_ = 0;  // after a failure the file is created again
    check_free();
    std::error_code error;
    fs::create_directories(now.folder, error);
    if (error) {
      throw Error(Errc::config, fmt::format("data record: cannot create the folder {}: {}",
                                            now.folder.string(), error.message()));
    }
    file_ = open_file(path_, O_WRONLY | O_APPEND);
  }
  attempt_ = ++begun_ == 1 ? now.attempt : fmt::format("{}.{}", now.attempt, begun_);
  std::string sources;
  for (std::size_t i = 0; i < options_.sources.size(); ++i) {
    sources += fmt::format("{}{{\"samples\":{},\"weight\":{},\"per_block\":{}}}", i == 0 ? "" : ",",
                           options_.sources[i].samples, options_.sources[i].weight,
                           per_block_.empty() ? 1 : per_block_[i]);
  }
  const auto time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  write(fmt::format(
      "{{\"kind\":\"attempt\",\"version\":1,\"name\":{},\"attempt\":{},\"rank\":{},"
      "\"world_size\":{},\"time\":{:.6f},\"seed\":{},\"shuffle\":{},\"last_batch\":\"{}\","
      "\"sources\":[{}],\"from\":{},\"at\":{}}}\n",
      json_quoted(options_.name), json_quoted(attempt_), now.rank, now.world_size, time.count(),
      options_.seed, options_.shuffle, word_of(options_.last_batch), sources,
      origin.attempt.empty() ? "null" : json_quoted(origin.attempt), json_of(origin.at)));
}

void Record::add(const DataBatch& batch, std::span<const DataSample> used,
                 std::span<const std::uint64_t> hashes) {
  std::string line = fmt::format(
      "{{\"kind\":\"batch\",\"at\":{},\"next\":{},\"size\":{},"
      "\"padding\":{},\"samples\":[",
      json_of(batch.first), json_of(batch.next), batch.size, batch.padding);
  auto out = std::back_inserter(line);
  for (std::size_t i = 0; i < used.size(); ++i) {
    const bool continues =
        i > 0 && used[i].source == used[i - 1].source && used[i].epoch == used[i - 1].epoch;
    if (continues) {
      fmt::format_to(out, ",{}", used[i].index);
    } else {
      fmt::format_to(out, "{}[{},{},[{}", i == 0 ? "" : "]],", used[i].source, used[i].epoch,
                     used[i].index);
    }
  }
  line += used.empty() ? "]" : "]]]";
  if (!hashes.empty()) {
    line += ",\"hashes\":[";
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      fmt::format_to(out, "{}{}", i == 0 ? "" : ",", hashes[i]);
    }
    line += "]";
  }
  write(line + "}\n");
}

void Record::add(const PackedBatch& batch, std::span<const DataPiece> used) {
  std::string line =
      fmt::format("{{\"kind\":\"packed\",\"at\":{},\"next\":{},\"size\":{},\"pieces\":[",
                  json_of(batch.first), json_of(batch.next), batch.size);
  auto out = std::back_inserter(line);
  for (std::size_t i = 0; i < used.size(); ++i) {
    const DataPiece& piece = used[i];
    fmt::format_to(out, "{}[{},{},{},{},{}]", i == 0 ? "" : ",", piece.epoch, piece.document,
                   piece.offset, piece.length, piece.total);
  }
  write(line + "]}\n");
}

void Record::flush() {
  if (file_ && ::fdatasync(file_.get()) != 0 && errno != EINVAL) {
    stop("fdatasync");
  }
}

void Record::write(const std::string& line) {
  for (std::size_t done = 0; file_ && done < line.size();) {
    const auto written = ::write(file_.get(), line.data() + done, line.size() - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      stop("write");
    }
  }
}

void Record::stop(const char* call) {
  logger(Component::runtime)
      .warn("data record: {}: {}: {}; training continues, and the record ends here", path_.string(),
            call, std::strerror(errno));
  file_ = UniqueFd();
}

}  // namespace acc::data
