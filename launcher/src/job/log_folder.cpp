// SPDX-License-Identifier: Apache-2.0
#include "job/log_folder.hpp"

#include "acc/base/error.hpp"
#include "acc/base/written_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace acc::launcher::job {
namespace {

namespace fs = std::filesystem;

Error not_made(const fs::path& folder, const std::error_code& error) {
  return {Errc::config, "cannot create the log folder " + folder.string() + ": " + error.message() +
                            "; choose another folder with --log_dir or TMPDIR"};
}

void make_trace_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(Errc::config,
                "--trace: cannot create the folder " + folder.string() + ": " + error.message());
  }
}

/// Creates a folder that only this user may access. In /tmp another user may have created a folder
/// or link of that name before; then it throws Error(config).
void make_private(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) == 0) {
    return;
  }
  error.assign(errno, std::generic_category());
  struct stat state {};
  const bool is_own = errno == EEXIST && ::lstat(folder.c_str(), &state) == 0 &&
                      S_ISDIR(state.st_mode) && state.st_uid == ::geteuid() &&
                      (state.st_mode & 077U) == 0;  // from an earlier attempt
  if (!is_own) {
    throw not_made(folder, error);
  }
}

/// Creates a file with mode 0600. It is opened later with the default mode, which does not change
/// that of an existing file.
void make_private_file(const std::string& path) {
  open_private_file(path);
}

}  // namespace

void LogFolder::open_attempt(int attempt) const {
  if (!plan_.trace_directory.empty()) {
    make_trace_folder(plan_.trace_directory);
  }
  if (plan_.directory.empty()) {
    return;
  }
  if (plan_.is_private && count_ > 0) {
    const fs::path folder = plan_.directory;
    make_private(plan_.keeps_directory ? folder.parent_path() : folder);
  }
  for (int index = 0; index < count_ && plan_.keeps_directory; ++index) {
    const fs::path file = worker_file(plan_, attempt, first_local_rank_ + index, "");
    const fs::path folder = file.parent_path();
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) {
      throw not_made(folder, error);
    }
  }
}

void LogFolder::name_ranks(int attempt, int first_rank) const {
  for (int index = 0; index < count_ && plan_.keeps_directory; ++index) {
    std::error_code ignored;  // a file system without symbolic links
    fs::create_directory_symlink(
        std::to_string(first_local_rank_ + index),
        attempt_file(plan_, attempt, fmt::format("rank_{}", first_rank + index)), ignored);
  }
}

output::WorkerTargets LogFolder::targets(int attempt, int local_rank) const {
  const OutputPlan::Streams files = plan_.files_of(local_rank);
  const OutputPlan::Streams console = plan_.console_of(local_rank);
  const auto target = [&](OutputPlan::Streams stream, const std::string& name,
                          const std::vector<std::string>& words) {
    output::StreamTarget result{
        .file = (files & stream) != 0 ? worker_file(plan_, attempt, local_rank, name) : "",
        .console = (console & stream) != 0};
    if (!result.file.empty() && !words.empty()) {  // one file for all ranks
      result.filter = {words, attempt_file(plan_, attempt, "filtered_" + name)};
    }
    for (const std::string& file : {result.file, result.filter.file}) {
      if (plan_.is_private && !file.empty()) {
        make_private_file(file);
      }
    }
    return result;
  };
  return {.out = target(OutputPlan::kOut, "stdout.log", plan_.stdout_filters),
          .err = target(OutputPlan::kErr, "stderr.log", plan_.stderr_filters)};
}

std::string LogFolder::error_file(int attempt, int local_rank) const {
  return plan_.directory.empty() ? "" : worker_file(plan_, attempt, local_rank, "error.json");
}

std::string LogFolder::flight_record(int attempt, int local_rank) const {
  return plan_.directory.empty() ? "" : flight_record_of(plan_, attempt, local_rank);
}

std::string LogFolder::kept_folder(int attempt) const {
  return plan_.keeps_directory && count_ > 0
             ? fs::path(attempt_file(plan_, attempt, "")).parent_path().string()
             : "";
}

std::string LogFolder::stacks_file(int attempt) const {
  return plan_.directory.empty() || count_ == 0 ? "" : attempt_file(plan_, attempt, "stacks.txt");
}

std::string LogFolder::report_file(int attempt) const {
  const std::string folder = kept_folder(attempt);
  return folder.empty() ? "" : folder + "/report.json";
}

void LogFolder::remove() const noexcept {
  std::error_code ignored;
  if (plan_.keeps_directory && !was_used_) {
    fs::remove_all(plan_.directory, ignored);
  } else if (const std::string folder = scratch(); !folder.empty()) {
    fs::remove_all(folder, ignored);
  }
}

std::string LogFolder::scratch() const {
  return plan_.keeps_directory ? "" : plan_.directory;
}

}  // namespace acc::launcher::job
