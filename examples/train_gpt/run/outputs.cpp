// SPDX-License-Identifier: Apache-2.0
#include "run/outputs.hpp"

#include <acc/base/error.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

/// Names of the file that is written last into a checkpoint folder, and into a folder of weights. A
/// folder that contains it may be replaced.
constexpr const char* kCheckpointMark = "acc_checkpoint.json";
constexpr const char* kWeightsMark = "model.safetensors.index.json";

[[noreturn]] void refuse(const std::string& flag, const fs::path& path, const std::string& why) {
  throw acc::Error(acc::Errc::config, "cannot write " + flag + " " + path.string() + ": " + why);
}

/// Refuses a path whose parent folder does not exist or is not writable.
void check_folder_of(const std::string& flag, const fs::path& path) {
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    refuse(flag, path, parent.string() + ": " + std::strerror(errno));
  }
}

void check_save(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path, error)) {
    if (!fs::is_directory(path, error)) {
      refuse("--save", path, "it is not a folder");
    }
    if (!fs::exists(path / kCheckpointMark, error) && !fs::is_empty(path, error)) {
      refuse("--save", path, "the folder contains files other than a checkpoint");
    }
  }
  check_folder_of("--save", path);
}

void check_series(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    check_folder_of("--checkpoint", path);
  } else if (!fs::is_directory(path, error)) {
    refuse("--checkpoint", path, "it is not a folder");
  } else {
    check_folder_of("--checkpoint", path / "checkpoint");
  }
}

void check_export(const fs::path& path) {
  std::error_code error;
  const bool is_file = path.extension() == ".safetensors" || path.extension() == ".bin";
  if (is_file && fs::is_directory(path, error)) {
    refuse("--export", path, "it is a folder");
  }
  if (!is_file && fs::exists(path, error)) {
    if (!fs::is_directory(path, error)) {
      refuse("--export", path,
             "it is not a folder, and its name ends in neither .safetensors nor .bin");
    }
    if (!fs::is_empty(path, error) && !fs::exists(path / kWeightsMark, error) &&
        !fs::exists(path / "model.safetensors", error)) {
      refuse("--export", path, "the folder contains files other than weights");
    }
  }
  check_folder_of("--export", path);
}

/// Removes a trailing slash, so that the parent of "run/" is the parent of "run".
fs::path without_slash(const std::string& text) {
  const fs::path path(text);
  return path.has_filename() ? path : path.parent_path();
}

/// True for a path on this machine. What can be written to s3:// is found out when it is written.
bool is_local(const std::string& path) {
  return !path.empty() && !path.starts_with("s3://");
}

}  // namespace

void check_outputs(const Options& options) {
  if (is_local(options.save)) {
    check_save(without_slash(options.save));
  }
  if (is_local(options.checkpoints)) {
    check_series(without_slash(options.checkpoints));
  }
  if (is_local(options.export_to)) {
    check_export(without_slash(options.export_to));
  }
}

}  // namespace train_gpt
