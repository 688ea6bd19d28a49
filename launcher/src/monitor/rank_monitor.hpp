// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/flight_record.hpp"
#include "acc/rendezvous/rank_status.hpp"
#include "monitor/report_pipe.hpp"
#include "supervision/process_state.hpp"
#include "supervision/worker_record.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::launcher::monitor {

/// Watches the workers of one attempt on this machine: reads what they report and samples their
/// processes, at an interval, and passes the result on. The event loop's thread runs it.
class RankMonitor {
 public:
  struct Worker {
    int rank = 0;
    int local_rank = 0;
    std::string flight_record{};  ///< path; empty: none
    std::optional<int> gpu{};     ///< index in GpuFacts; empty: none
  };
  using Show = std::function<void(std::vector<rendezvous::RankStatus>)>;
  /// Adds what is known outside of this class: of the GPU, the collectives and stderr. The record
  /// is null if there is none.
  using Complete =
      std::function<void(const Worker&, const flight::Record*, rendezvous::RankStatus&)>;

  /// Makes the pipes of the workers.
  RankMonitor(const boost::asio::any_io_executor& executor, std::vector<Worker> workers,
              std::chrono::milliseconds interval, Complete complete, Show show);
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  /// Descriptor for the reports of worker `index`, until `start`.
  [[nodiscard]] int report_descriptor(std::size_t index) const;
  using Records = std::span<const supervision::WorkerRecord>;
  /// The workers run: samples at once, and then at the interval. `records`: of the same workers, in
  /// the same order; called at each sample. Does nothing the second time.
  void start(std::function<Records()> records);
  /// The workers have other ranks from now on, from `rank`.
  void set_first_rank(int rank);
  /// Samples for the last time and ends.
  void finish(Records records);

 private:
  struct Watched;
  void sample(Records records);
  void await_sample();
  [[nodiscard]] rendezvous::RankStatus status_of(Watched& worker,
                                                 const supervision::WorkerRecord* record);

  boost::asio::steady_timer timer_;
  std::chrono::milliseconds interval_;
  Complete complete_;
  Show show_;
  std::function<Records()> records_;
  std::vector<Watched> workers_;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  ///< ends with this object
};

}  // namespace acc::launcher::monitor
