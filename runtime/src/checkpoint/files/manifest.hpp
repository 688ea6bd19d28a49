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
  std::vector<File> files;
};

inline constexpr const char* kManifestFile = "acc_checkpoint.json";

/// With a checksum of its own.
std::string format_manifest(const Manifest& manifest);
/// Throws Error(config) that begins with `path`: damaged, another version.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

/// Of a folder; nothing where it has none. Checks that every file listed is there in its size;
/// throws Error(config) that names the first that is not.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

/// Throws Error(config) that names the file unless its bytes have the checksum that the manifest
/// lists.
void check_file(const Manifest& manifest, const std::filesystem::path& folder,
                const std::string& path);

}  // namespace acc::checkpoint
