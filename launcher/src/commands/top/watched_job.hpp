// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/http_reader.hpp"
#include "acc/rendezvous/slowest_rank.hpp"

#include <nlohmann/json.hpp>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace acc::launcher::commands {

/// A job in the form of the HTTP API (docs/api.schema.json). The values come from a server and are
/// not checked.
struct WatchedJob {
  nlohmann::json job;    ///< the definition `job`
  nlohmann::json ranks;  ///< `ranks` of the definition `ranks`
};

/// Finds the jobs to watch. Each call of `look` returns their present state.
class JobSource {
 public:
  virtual ~JobSource() = default;
  [[nodiscard]] virtual std::vector<WatchedJob> look() = 0;
  /// Where the jobs come from: "this machine", "node0:29500".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Advice for a server without jobs.
  [[nodiscard]] virtual std::vector<std::string> advice() const = 0;
};

/// The jobs of this user on this machine, by /proc and the workers' records; of one launcher (a
/// process ID or a run ID) if `job` is not empty. A look throws Error(not_found) if that one is not
/// there (any more).
class LocalJobs final : public JobSource {
 public:
  explicit LocalJobs(std::string job) : job_(std::move(job)) {}
  [[nodiscard]] std::vector<WatchedJob> look() override;
  [[nodiscard]] std::string name() const override { return "this machine"; }
  [[nodiscard]] std::vector<std::string> advice() const override;

 private:
  struct Sample {
    std::chrono::steady_clock::time_point time;
    std::chrono::milliseconds cpu;
    rendezvous::Pace pace{};
  };
  std::string job_;
  std::map<pid_t, Sample> samples_;  ///< of the previous look
};

/// The jobs of a server of the HTTP API; one job if `job` is not empty. A look throws
/// Error(connection), Error(timeout), Error(config) if the server requires another token, or
/// Error(protocol) for an answer that is not that of the API.
class ServerJobs final : public JobSource {
 public:
  ServerJobs(rendezvous::HttpReader reader, std::string job)
      : reader_(std::move(reader)), job_(std::move(job)) {}
  [[nodiscard]] std::vector<WatchedJob> look() override;
  [[nodiscard]] std::string name() const override { return reader_.name(); }
  [[nodiscard]] std::vector<std::string> advice() const override;

 private:
  [[nodiscard]] nlohmann::json get(const std::string& path,
                                   rendezvous::HttpReader::Time until) const;

  rendezvous::HttpReader reader_;
  std::string job_;
};

}  // namespace acc::launcher::commands
