// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot_writer.hpp"

#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/dcp/plan_json.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/pickle/source.hpp"

#include <fmt/format.h>

namespace acc::state_dict {
namespace {

namespace fs = std::filesystem;

/// Refuses names that no reader would return: not UTF-8, or reserved for the runtime.
void check_names(const ProgramState& values) {
  for (const auto& [name, value] : values) {
    if (!pickle::is_utf8(name)) {
      throw Error(Errc::invalid_argument,
                  fmt::format("the name of a program's value is not UTF-8: '{}'", name));
    }
    if (name.starts_with(kSeedPrefix)) {
      throw Error(Errc::invalid_argument,
                  fmt::format("a program's value may not be named '{}': names that begin with {} "
                              "are reserved for the runtime",
                              name, kSeedPrefix));
    }
  }
}

}  // namespace

SnapshotWriter::SnapshotWriter(const Snapshot& snapshot, const std::string& directory,
                               std::uint32_t id, Existing existing, ProgressMeter& meter)
    : snapshot_(snapshot),
      directory_(directory),
      id_(id),
      existing_(existing),
      meter_(meter),
      expected_(snapshot.expected) {}

void SnapshotWriter::begin(Attempt& attempt) {
  attempt([this] { make_folder(); });
}

void SnapshotWriter::write(Attempt& attempt, const std::atomic<bool>* ends) {
  attempt([&] {
    for (const PlannedFolder& planned : snapshot_.folders) {
      write_folder(planned, ends);
    }
  });
  for (const Snapshot::File& file : snapshot_.files) {
    file.write(folder_ ? in_folder(file.name) : fs::path(file.name), attempt, meter_);
  }
  // A rank that finds its folder gone reports that instead of the write error it caused.
  attempt.explain([this] { check_there(); });
}

// Names are checked here, inside of the attempt, so that an error on one rank reaches all.
void SnapshotWriter::make_folder() {
  folder_.emplace(directory_, accelerate::is_ours, id_, existing_);
  check_names(snapshot_.state.program);
  check_names(snapshot_.state.of_rank);
  if (snapshot_.rank == 0) {
    folder_->begin();
  }
  std::vector<std::string> names;
  for (const PlannedFolder& planned : snapshot_.folders) {
    names.push_back(planned.name);
  }
  folder_->make(names);
}

/// Throws if the temporary folder is gone, which explains why a file could not be written.
void SnapshotWriter::check_there() const {
  if (folder_) {
    folder_->check_there();
  }
}

// Rank 0 computes the expected size of every rank's file from the plan; no rank reports it.
void SnapshotWriter::write_folder(const PlannedFolder& planned, const std::atomic<bool>* ends) {
  dcp::write_rank_file(in_folder(planned.name), planned.plan, snapshot_.rank,
                       [&](const dcp::PlannedChunk& chunk, const torch::Sink& sink) {
                         planned.fill(chunk, [&](std::span<const std::byte> bytes) {
                           if (ends != nullptr && *ends) {
                             throw Error(Errc::peer_lost, "the job has lost a rank");
                           }
                           counted(sink, meter_)(bytes);
                         });
                       });
  if (snapshot_.rank != 0) {
    return;
  }
  const auto written = dcp::write_metadata_file(in_folder(planned.name), planned.plan);
  plans_[planned.name] = dcp::format_plan(planned.plan);
  for (int rank = 0; rank < snapshot_.ranks; ++rank) {
    expected_.push_back({.path = planned.name + "/" + dcp::file_name(rank),
                         .rank = rank,
                         .nbytes = dcp::plan_file(planned.plan, rank).nbytes});
  }
  expected_.push_back({.path = planned.name + "/" + dcp::kMetadataFile,
                       .nbytes = written.nbytes,
                       .crc32 = written.crc32});
}

void SnapshotWriter::commit() {
  check_there();
  Manifest manifest = snapshot_.manifest;
  manifest.plans = plans_;
  for (const Snapshot::Expected& each : expected_) {
    manifest.files.push_back(found(each));
  }
  OutputFile file(in_folder(kManifestFile));
  file.write(format_manifest(manifest));
  file.close();
  folder_->commit();
}

// Checks that rank 0 sees a rank's file, which fails if the machines do not share the folder.
Manifest::File SnapshotWriter::found(const Snapshot::Expected& each) const {
  const InputPath path = in_folder(each.path);
  const bool is_there = path.exists();
  const std::uint64_t nbytes = is_there ? path.nbytes() : 0;
  if (!is_there || (each.nbytes && nbytes != *each.nbytes)) {
    throw Error(
        Errc::disagreement,
        fmt::format("rank {} wrote no file {} that rank 0 can see: {}; all machines must share "
                    "the checkpoint's folder",
                    each.rank, path.string(),
                    is_there ? fmt::format("expected {} bytes, found {}", *each.nbytes, nbytes)
                             : "No such file or directory"),
        each.rank);
  }
  if (each.nbytes) {  // of a plan
    return {.path = each.path, .nbytes = nbytes, .crc32 = each.crc32};
  }
  const InputFile file(path);
  if (each.is_small) {
    return {.path = each.path, .nbytes = nbytes, .crc32 = crc32_of(file, 0, nbytes)};
  }
  return {.path = each.path, .nbytes = nbytes, .end_crc32 = end_crc32_of(file)};
}

void SnapshotWriter::abandon() noexcept {
  if (snapshot_.rank == 0 && folder_) {
    folder_->abandon();
  }
}

}  // namespace acc::state_dict
