// SPDX-License-Identifier: Apache-2.0
// acclaunch dump: the last collectives of a running job's ranks, as files for torchfrtrace
// (docs/watching.md).
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/status/running_jobs.hpp"
#include "report/torch_record.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;

/// torch looks up the lines of the Python stacks, which takes seconds at the first request.
constexpr std::chrono::seconds kDumpLimit{60};

/// Asks the workers that have no record of the runtime for torch's, and waits for the answers. A
/// pickle runs code in the program that reads it, so that another user's worker is not asked for
/// one.
void await_torch(const std::vector<RunningWorker>& workers) {
  std::vector<report::RecordFiles> records;
  for (const RunningWorker& worker : workers) {
    if (!worker.has_collectives()) {
      records.push_back(worker.files);
    }
  }
  report::ask_for_torch_records(records, kDumpLimit, [](const report::RecordFiles& record) {
    return record.are_foreign() ? report::TorchForm::json : report::TorchForm::pickle;
  });
}

/// Returns the collectives of a worker as a pickle; "" if it has no record.
std::string pickle_of(const RunningWorker& worker) {
  if (!worker.has_collectives() && !worker.files.are_foreign()) {
    return report::read_torch_pickle(worker.files);
  }
  const auto record = worker.has_collectives()
                          ? worker.report.flight
                          : report::read_any_record(worker.files, worker.report.rank);
  return record && !record->last.empty() ? report::torch_pickle(*record) : "";
}

/// Returns the pickles of the ranks that have a record, by rank.
std::map<int, std::string> pickles_of(const RunningJob& job) {
  std::map<int, std::string> pickles;
  for (const RunningWorker& worker : job.workers) {
    std::string pickle = pickle_of(worker);
    if (!pickle.empty()) {
      pickles.emplace(worker.report.rank, std::move(pickle));
    }
  }
  if (pickles.empty()) {
    throw Error(
        Errc::not_found,
        "dump: no rank has a record of collectives: the program uses neither libacc_runtime, "
        "nor torch.distributed with the Python package acclaunch");
  }
  return pickles;
}

void write_pickles(const std::map<int, std::string>& pickles, const fs::path& folder,
                   Overwrite overwrite) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(Errc::config, "dump: cannot create the folder " + printable(folder.string()) +
                                  ": " + error.message());
  }
  for (const auto& [rank, pickle] : pickles) {
    write_file(folder / fmt::format("rank_{}", rank), pickle, overwrite);
  }
}

}  // namespace

int dump_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch dump [JOB] -o DIR: writes the last collectives of each rank on this machine, "
      "while "
      "the job\nruns or hangs, to DIR/rank_N in the format of torch's flight recorder. "
      "`torchfrtrace "
      "DIR --prefix rank_`\ncompares the ranks. JOB is a run ID or the process ID of an acclaunch; "
      "it may be left out if only one\njob runs.",
      "acclaunch dump");
  std::string name;
  std::string folder;
  bool overwrite = false;
  parser.add_option("job", name, "run ID, or process ID of an acclaunch");
  parser.add_option("-o,--output", folder, "folder for the files; it is created").required();
  parser.add_flag("--overwrite", overwrite, "replace files of an earlier dump");
  parser.parse(arguments);
  const std::vector<RunningJob> jobs = chosen_jobs(name, "dump");
  if (jobs.size() > 1) {
    throw Error(
        Errc::invalid_argument,
        fmt::format("dump: {} jobs run on this machine; name one of them by its process ID, "
                    "such as {}",
                    jobs.size(), jobs.front().launcher));
  }
  const RunningJob& job = jobs.front();
  await_torch(job.workers);
  const std::map<int, std::string> pickles = pickles_of(job);
  ::umask(S_IRWXG | S_IRWXO);
  write_pickles(pickles, folder, overwrite ? Overwrite::yes : Overwrite::no);
  std::printf("%zu of %d ranks written to %s; read them with: torchfrtrace %s --prefix rank_%s\n",
              pickles.size(), job.world_size, printable(folder).c_str(),
              shell_quoted(folder).c_str(),
              static_cast<int>(pickles.size()) < job.world_size ? " --allow-incomplete-ranks" : "");
  return 0;
}

}  // namespace acc::launcher::commands
