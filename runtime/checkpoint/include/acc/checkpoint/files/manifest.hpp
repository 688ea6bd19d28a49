// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/files/input_path.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace acc::checkpoint {

/// Content of acc_checkpoint.json, the file that we add to a checkpoint folder in Accelerate's
/// layout. It is written last. It states that the folder is complete, holds the checksums of the
/// small files, and keeps what the other formats have no place for (docs/formats/acclaunch.md).
struct Manifest {
  struct File {
    std::string path;  ///< relative to the folder, with '/'
    std::uint64_t nbytes = 0;
    std::optional<std::uint32_t> crc32 = {};  ///< absent: the file's content has its own checksums
    /// end_crc32_of the file: tells it apart from one of another rank or step, whose own checksums
    /// are right too. Absent: it has a checksum, or marks (dcp::mark_of).
    std::optional<std::uint32_t> end_crc32 = {};
  };

  std::string writer;      ///< "acclaunch 0.1.0"
  std::string state_dict;  ///< "SHARDED_STATE_DICT", …
  std::string strategy;    ///< sharding strategy of the run that saved, for messages
  int world_size = 1;
  std::int64_t step = 0;  ///< optimizer steps of model 0; the next three are model 0's too
  std::int64_t skipped_steps = 0;
  std::string optimizer;  ///< OptimizerRule::name, or "program"
  std::map<std::string, double> loss_scaler;
  /// The same four values for models 1, 2, ….
  struct Training {
    std::int64_t step = 0;
    std::int64_t skipped_steps = 0;
    std::string optimizer;
    std::map<std::string, double> loss_scaler;

    bool operator==(const Training&) const = default;
  };
  std::vector<Training> others = {};
  std::map<std::string, std::string> aliases;  ///< other name of a tied tensor -> its main name
  /// How the flat parameters of LOCAL_STATE_DICT are cut, so that other worlds can read them. JSON,
  /// as format_local_layout returns it; empty for other state-dict types.
  std::string local_layout;
  /// For each DCP folder ("optimizer_0"), the plan by which it was written, so that our readers do
  /// not need its `.metadata`. JSON, as dcp::format_plan returns it.
  std::map<std::string, std::string> plans;
  std::vector<File> files;  ///< all files of the checkpoint but the manifest itself
};

inline constexpr const char* kManifestFile = "acc_checkpoint.json";

/// Returns the text of the file, with its own checksum in the first line. Throws
/// Error(not_supported) if a name is not UTF-8.
std::string format_manifest(const Manifest& manifest);
/// Throws Error(config) that begins with `path` if the text is damaged, Unreadable if it is of
/// another version.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

/// Reads the manifest of a folder. Returns nothing if the folder has none. Does not look at any
/// other file: a save folder of 10,000 ranks has too many to check on every open.
std::optional<Manifest> read_manifest(const InputPath& folder);

/// True if a file is `part` ("optimizer_0", "scheduler.bin") or lies below it.
bool is_in(const Manifest::File& file, const std::string& part);
/// Throws Error(config) with the file's path unless the file exists and has the listed size.
void check_size(const Manifest::File& file, const InputPath& folder);
/// Checks the sizes of all listed files in `part`, or of all files if `part` is empty.
void check_sizes(const Manifest& manifest, const InputPath& folder, const std::string& part = {});

/// Returns the checksum of the last 4 KiB, in which an archive of ours has a checksum of all of its
/// content.
std::uint32_t end_crc32_of(const InputFile& file);
/// Throws Error(config) with the file's path unless its bytes have the listed checksums (if there
/// are any).
void check_file(const Manifest::File& file, const InputPath& folder);
/// The same for a path, which must be listed.
void check_file(const Manifest& manifest, const InputPath& folder, const std::string& path);

}  // namespace acc::checkpoint
