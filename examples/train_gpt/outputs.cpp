#include "outputs.hpp"

#include <acc/base/error.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& flag, const fs::path& path, const std::string& why) {
  throw acc::Error(acc::Errc::config, "cannot write " + flag + " " + path.string() + ": " + why);
}

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
      refuse("--save", path, "it is no folder");
    }
    if (!is_checkpoint(path) && !fs::is_empty(path, error)) {
      refuse("--save", path, "the folder holds something else than a checkpoint");
    }
  }
  check_folder_of("--save", path);
}

void check_series(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    check_folder_of("--checkpoint", path);
  } else if (!fs::is_directory(path, error)) {
    refuse("--checkpoint", path, "it is no folder");
  } else {
    check_folder_of("--checkpoint", path / "step");
  }
}

void check_export(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    refuse("--export", path, "it is a folder");
  }
  check_folder_of("--export", path);
}

/// "run/" means "run".
fs::path without_slash(const std::string& text) {
  const fs::path path(text);
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kCheckpointMark, error);
}

void check_outputs(const Options& options) {
  if (!options.save.empty()) {
    check_save(without_slash(options.save));
  }
  if (!options.checkpoints.empty()) {
    check_series(without_slash(options.checkpoints));
  }
  if (!options.export_to.empty()) {
    check_export(options.export_to);
  }
}

}  // namespace train_gpt
