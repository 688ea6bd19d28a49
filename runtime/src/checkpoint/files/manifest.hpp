#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace acc::checkpoint {

/// What we add to a checkpoint folder that others would write too: acc_checkpoint.json, written
/// last. It says that the folder is whole, by what to check its small files, and what other formats
/// have no place for.
struct Manifest {
  struct File {
    std::string path;  ///< in the folder, with '/'
    std::uint64_t nbytes = 0;
    std::optional<std::uint32_t> crc32;  ///< absent: its content has checksums of its own
  };

  std::string writer;      ///< "acclaunch 0.1.0"
  std::string state_dict;  ///< "SHARDED_STATE_DICT", …
  std::string strategy;    ///< of the saving run, for messages
  int world_size = 1;
  std::int64_t step = 0;  ///< of model 0, as what follows
  std::int64_t skipped_steps = 0;
  std::string optimizer;  ///< "adamw" or "sgd"
  std::map<std::string, double> loss_scaler;
  /// The same of models 1, 2, ….
  struct Training {
    std::int64_t step = 0;
    std::int64_t skipped_steps = 0;
    std::string optimizer;
    std::map<std::string, double> loss_scaler;

    bool operator==(const Training&) const = default;
  };
  std::vector<Training> others = {};
  std::map<std::string, std::string> aliases;  ///< second name of a tied tensor -> its name
  /// How LOCAL_STATE_DICT's flat parameters are cut, so that other worlds can read them: JSON.
  std::string local_layout;
  /// By which plan a DCP folder was written ("optimizer_0"), so that nobody needs its `.metadata`:
  /// JSON, as dcp::format_plan gives it.
  std::map<std::string, std::string> plans;
  std::vector<File> files;
};

inline constexpr const char* kManifestFile = "acc_checkpoint.json";

/// With a checksum of its own.
std::string format_manifest(const Manifest& manifest);
/// Throws Error(config) that begins with `path`: damaged, another version.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

/// Of a folder; nothing where it has none. Looks at no other file: of a save folder of 10,000 ranks
/// nobody reads all.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

/// Whether a file is `part` ("optimizer_0", "scheduler.bin") or lies below it.
bool is_in(const Manifest::File& file, const std::string& part);
/// Throws Error(config) that names the file unless it is there in its size.
void check_size(const Manifest::File& file, const std::filesystem::path& folder);
/// The same of all files listed that are in `part`; empty: of all.
void check_sizes(const Manifest& manifest, const std::filesystem::path& folder,
                 const std::string& part = {});

/// Throws Error(config) that names the file unless its bytes have the checksum that the manifest
/// lists.
void check_file(const Manifest& manifest, const std::filesystem::path& folder,
                const std::string& path);

}  // namespace acc::checkpoint
