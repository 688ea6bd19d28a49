// SPDX-License-Identifier: Apache-2.0
#include "monitor/rank_monitor.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher::monitor {

using rendezvous::RankStatus;
using std::chrono::steady_clock;

struct RankMonitor::Watched {
  Worker worker;
  std::shared_ptr<ReportPipe> pipe;
  std::optional<flight::Metrics> reported;  ///< of the last complete flight record
  std::optional<std::chrono::milliseconds> cpu_time;
  steady_clock::time_point sampled_at;
};

RankMonitor::RankMonitor(const boost::asio::any_io_executor& executor, std::vector<Worker> workers,
                         std::chrono::milliseconds interval, Complete complete, Show show)
    : timer_(executor),
      interval_(interval),
      complete_(std::move(complete)),
      show_(std::move(show)) {
  for (Worker& worker : workers) {
    Watched& watched = workers_.emplace_back();
    watched.worker = std::move(worker);
    watched.pipe = std::make_shared<ReportPipe>(executor);
  }
}

RankMonitor::~RankMonitor() {
  for (const Watched& each : workers_) {
    each.pipe->close();
  }
}

int RankMonitor::report_descriptor(std::size_t index) const {
  return workers_.at(index).pipe->writing_end().get();
}

void RankMonitor::start(std::function<Records()> records) {
  if (records_) {
    return;
  }
  records_ = std::move(records);
  for (const Watched& each : workers_) {
    each.pipe->close_writing_end();
    each.pipe->start();
  }
  sample(records_());
  await_sample();
}

void RankMonitor::set_first_rank(int rank) {
  for (Watched& each : workers_) {
    each.worker.rank = rank++;
  }
}

void RankMonitor::finish(Records records) {
  timer_.cancel();
  if (std::exchange(records_, nullptr)) {
    sample(records);
  }
}

void RankMonitor::await_sample() {
  timer_.expires_after(interval_);
  // The handler may be queued already when this object is destroyed.
  timer_.async_wait(
      [this, alive = std::weak_ptr(is_alive_)](const boost::system::error_code& error) {
        if (!error && !alive.expired() && records_) {
          sample(records_());
          await_sample();
        }
      });
}

void RankMonitor::sample(Records records) {
  std::vector<RankStatus> all;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    all.push_back(status_of(workers_[i], i < records.size() ? &records[i] : nullptr));
  }
  show_(std::move(all));
}

RankStatus RankMonitor::status_of(Watched& watched, const supervision::WorkerRecord* record) {
  RankStatus status{.rank = watched.worker.rank, .local_rank = watched.worker.local_rank};
  const auto now = steady_clock::now();
  watched.pipe->sample();
  if (record != nullptr && record->pid > 0) {
    status.pid = record->pid;
    const bool is_victim = record->told_to_end || record->got_passed_signal;
    status.state = !record->end                       ? RankStatus::State::running
                   : record->end->shell_status() == 0 ? RankStatus::State::ended
                   : is_victim                        ? RankStatus::State::stopped
                                                      : RankStatus::State::failed;
  }
  if (status.state == RankStatus::State::running) {
    if (const auto usage = supervision::process_usage(record->pid)) {
      const std::chrono::duration<double> passed = now - watched.sampled_at;
      if (watched.cpu_time && passed.count() > 0.0) {
        const std::chrono::duration<double> used = usage->cpu - *watched.cpu_time;
        status.cpu_percent = std::max(0.0, 100.0 * used / passed);
      }
      watched.cpu_time = usage->cpu;
      watched.sampled_at = now;
      status.resident_bytes = usage->resident_bytes;
    }
  }
  // Metrics of the runtime. Those that the program writes to its descriptor replace them below.
  std::optional<flight::Record> flight;
  if (!watched.worker.flight_record.empty()) {
    flight = flight::read_record(watched.worker.flight_record);
    if (flight && flight->metrics) {
      watched.reported = flight->metrics;
    }
  }
  complete_(watched.worker, flight ? &*flight : nullptr, status);
  if (watched.reported) {
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
    status.metrics = watched.reported->values;
    status.report_age =
        std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(
                       since_1970 - std::chrono::microseconds(watched.reported->reported_us)),
                   std::chrono::milliseconds(0), std::chrono::milliseconds(RankStatus::kMaxAge));
  }
  if (const auto reported_at = watched.pipe->reported_at()) {
    merge(status.metrics, watched.pipe->metrics());
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - *reported_at);
    status.report_age = std::min(status.report_age.value_or(age), age);
  }
  return status;
}

}  // namespace acc::launcher::monitor
