// SPDX-License-Identifier: Apache-2.0
// Life cycle of a job on one machine. `work` is the main coroutine: join a round, run an attempt,
// exchange reports with the other machines, and, if the round's result says so, join the next
// round. Events that may interrupt it (signals, ends of attempts, lost connections) are in
// job_events.cpp. All of it runs in one thread on one io_context, so no state needs a lock.
#include "job/job.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/trace_file.hpp"
#include "acc/base/variables.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "host/gpu/gpu_monitor.hpp"
#include "host/own_variables.hpp"
#include "job/running_job.hpp"
#include "output/line_prefix.hpp"
#include "output/worker_targets.hpp"
#include "report/error_file.hpp"
#include "report/late_ranks.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

namespace acc::launcher::job {
namespace asio = boost::asio;
using rendezvous::AttemptEnd;
using rendezvous::RankStatus;
using rendezvous::Round;
using rendezvous::RoundResult;
using Cause = AttemptEnd::Cause;

namespace {

/// Returns the index of the GPU that a worker uses; empty if it uses none, or several.
std::optional<int> gpu_of_worker(const LaunchPlan& plan, const settings::Environment& environment,
                                 int local_rank) {
  if (plan.device != settings::Device::cuda) {
    return std::nullopt;
  }
  const std::string list = host::value_of(environment, host::variables.cuda_visible_devices);
  std::vector<int> visible;
  if (!list.empty()) {
    visible = visible_gpus(list, plan.gpus.devices);
  } else {
    for (int device = 0; device < static_cast<int>(plan.gpus.devices.size()); ++device) {
      visible.push_back(device);
    }
  }
  const auto index = static_cast<std::size_t>(plan.virtual_local_rank ? 0 : local_rank);
  return index < visible.size() ? std::optional(visible[index]) : std::nullopt;
}

/// True if all machines of a round have as many workers.
bool is_even(const Round& round) {
  return std::ranges::adjacent_find(round.local_world_sizes, std::not_equal_to()) ==
         round.local_world_sizes.end();
}

/// Where the workers of a round meet, and with --elastic_replicas their machine's place, from which
/// they know all ranks if machines have as many workers.
MembershipPage::Meeting meeting_of(const LaunchPlan& plan, const Assignment& assignment,
                                   const Round& round) {
  const bool is_elastic = plan.supervision.elastic_replicas && is_even(round);
  return {.host = assignment.master_addr,
          .port = assignment.master_port,
          .secret = assignment.secret,
          .restart_count = assignment.restart_count,
          .machine_rank = is_elastic ? assignment.machine_rank : 0,
          .num_machines = is_elastic ? assignment.num_machines : 0};
}

}  // namespace

Job::Job(const LaunchPlan& plan, const settings::Environment& environment, supervision::Guard guard,
         std::chrono::steady_clock::time_point begun)
    : plan_(plan),
      environment_(environment),
      host_(host_name()),
      alone_(plan.layout.local_world_size == 1 &&
             (plan.layout.num_machines == 1 || plan.identity == Identity::none)),
      job_control_(guard.job_control),
      runner_(std::move(guard), output_options(),
              {.on_signal = [this](supervision::PassedSignal signal) { on_signal(signal); },
               .before_exit = [this] { return end_without_guard(); }}),
      logs_(plan.output, first_local_rank(plan.layout),
            plan.has_records ? plan.layout.local_world_size : 0),
      rounds_(make_rounds(runner_.io(), plan, host_,
                          {.on_end = [this](const AttemptEnd& end) { on_attempt_end(end); },
                           .on_force_stop = [this] { on_force_stop(); },
                           .say = [this](const std::string& line) { announce(line); }})),
      phases_(!plan.output.trace_directory.empty()),
      time_limit_(runner_.io()),
      pause_(runner_.io()),
      pauses_(plan.supervision.restart_backoff) {
  phases_.add("plan", begun, started_at_);
}

int Job::run() {
  listen_to_remote_launcher();
  asio::co_spawn(runner_.io(), work(), [this](const std::exception_ptr& error) {
    if (error) {
      runner_.fail(error);
    }
    close();
  });
  runner_.io().run();  // returns when the other machines have also received their last answers
  if (gave_up() || stop_) {
    leave_at_once();
  }
  runner_.rethrow_fault();
  return exit_status();
}

/// Exits without running destructors. They would wait for workers that cannot be killed, and for
/// the thread of a DNS lookup in progress.
void Job::leave_at_once() {
  runner_.output().hide_status();
  logs_.remove();
  constexpr int kInterrupted = 128 + SIGINT;
  if (stop_ && stop_->exit_status == kInterrupted && status_ == kInterrupted) {
    supervision::die_of_interrupt();
  }
  std::_Exit(exit_status());
}

asio::awaitable<void> Job::work() {
  for (const std::string& notice : plan_.notices) {
    announce(notice);
  }
  runner_.leftovers().add_folder(logs_.scratch());
  try {
    logs_.open_attempt(0);  // before joining: a machine that cannot start must not delay the others
    co_await prepare_fork_server();
    const bool begins = co_await join_round();
    if (begins) {
      if (control_) {
        remote_launch::control::say(remote_launch::control::Joined{host_});
      }
      co_await run_attempts();
    } else if (!stop_) {
      end_without_round();
    }
    advance(JobEvent::finish);
  } catch (const std::exception& error) {
    runner_.fail(std::current_exception());
    on_fault(error);
  }
  time_limit_.cancel();
  if (runner_.has_failed() && round_) {
    co_await part_from_machines();
  }
  co_await flush_output();
  if (gave_up()) {
    leave_at_once();
  }
  co_await rounds_->part();
  write_phases();
}

/// Waits until all output has been written. After a stop request it waits for the reader of the
/// output at most as long as for a worker.
asio::awaitable<void> Job::flush_output() {
  asio::steady_timer patience(runner_.io(), plan_.supervision.shutdown_timeout);
  if (stop_) {
    patience.async_wait([this](const boost::system::error_code& error) {
      if (!error) {
        runner_.io().stop();
      }
    });
  }
  co_await runner_.output().flushed();
}

/// Joins the next round. False if the job ended before a round with this machine was formed.
asio::awaitable<bool> Job::join_round() {
  advance(JobEvent::join);
  const auto begin = Phases::Clock::now();
  round_ = co_await rounds_->next();
  phases_.add("join", begin, Phases::Clock::now());
  co_await wait_if_leaving();
  co_return round_.has_value();
}

/// Does not complete after a stop request: `leave_while_joining` sends its message and ends the
/// loop.
asio::awaitable<void> Job::wait_if_leaving() {
  if (state_ == JobState::leaving) {
    asio::steady_timer until_then(runner_.io(), std::chrono::steady_clock::time_point::max());
    co_await until_then.async_wait(asio::use_awaitable);
  }
}

/// The job is over, and this machine was in none of its rounds: that is no success, because nothing
/// was run here, unless it was a spare.
void Job::end_without_round() {
  if (plan_.settings.integer("spares"_key) > 0) {
    say("the job has ended: this machine was a spare that was not needed", LogLevel::info);
    return;
  }
  const std::optional<AttemptEnd>& end = rounds_->known_end();
  status_ = end && end->exit_status != 0 ? end->exit_status : 1;
  say("the job ended before this machine had a place in it: nothing was run here",
      LogLevel::critical);
}

/// Gives up this machine's place in the round that is being formed, then ends the event loop.
asio::awaitable<void> Job::leave_while_joining() {
  co_await rounds_->leave();
  runner_.io().stop();
}

/// Leaves the job after an internal fault, so that the other machines do not wait for this
/// launcher.
asio::awaitable<void> Job::part_from_machines() {
  co_await rounds_->end_is_known();
  co_await rounds_->leave();
}

asio::awaitable<void> Job::run_attempts() {
  stop_in_time();
  if (phases_.wanted()) {  // programs without the runtime do not create it
    try {
      create_trace_file(trace_file(plan_.output, round_->machine_rank));
    } catch (const TraceLost& error) {
      say(error.what(), LogLevel::err);
    }
  }
  bool again = true;
  while (again) {
    again = co_await run_attempt();
  }
}

/// Runs one attempt and publishes its report. True if another attempt follows.
asio::awaitable<bool> Job::run_attempt() {
  attempt_.emplace(runner_.io(), round_->round);
  const supervision::AttemptOutcome outcome = co_await run_workers();
  has_run_ = true;
  attempt_->gave_up = outcome.gave_up;
  for (const std::string& process : outcome.left_behind) {
    say("cannot be killed: " + process, LogLevel::err);
  }
  advance(JobEvent::workers_ended);
  runner_.output().drain();
  if (attempt_->result && attempt_->result->next == RoundResult::Next::next_round) {
    co_return co_await begin_attempt(round_->restart_count);
  }
  if (!attempt_->result) {
    attempt_->result = co_await settle(outcome);
    report_lost_machines(*attempt_->result);
  }
  const RoundResult& round_result = *attempt_->result;
  const report::JobReport report = report_of(round_result);
  status_ = report.exit_status;
  publish(report, round_result);
  if (gave_up() || round_result.next == RoundResult::Next::finished) {
    co_return false;
  }
  co_return co_await go_on(report);
}

/// Starts the workers and waits until all of them have ended.
asio::awaitable<supervision::AttemptOutcome> Job::run_workers() {
  runner_.surroundings().cgroup->make();
  if (!plan_.preload.modules.empty()) {
    co_await fork_workers(plan_.layout.local_world_size);
    co_await wait_if_leaving();
  }
  if (const auto& end = rounds_->known_end()) {  // another machine has ended the attempt already
    advance(JobEvent::workers_ended);
    advance(event_of(*end));
    co_return supervision::AttemptOutcome{};
  }
  attempt_->supervisor.emplace(runner_.io().get_executor(), runner_.output(), supervisor_options());
  advance(JobEvent::workers_start);
  logs_.keep();
  std::vector<supervision::WorkerSpec> specs = worker_specs();
  if (!specs.empty()) {
    logs_.name_ranks(attempt_->number, specs.front().rank);
  }
  monitor_workers(specs);
  attempt_->specs = specs;
  asio::co_spawn(
      runner_.io(), attempt_->supervisor->run(std::move(specs)),
      [attempt = &*attempt_](const std::exception_ptr& fault, supervision::AttemptOutcome outcome) {
        attempt->fault = fault;
        attempt->outcome = std::move(outcome);
        attempt->news.open();
      });
  supervision::AttemptOutcome outcome = co_await await_workers();
  if (attempt_->rank_monitor) {
    attempt_->rank_monitor->finish(outcome.workers);
  }
  co_await first_failure_is_explained();
  note_phases(outcome);
  co_return outcome;
}

supervision::Supervisor::Options Job::supervisor_options() {
  supervision::Supervisor::Options options;
  options.shutdown_timeout = plan_.supervision.shutdown_timeout;
  options.stuck_timeout = plan_.supervision.stuck_timeout;
  options.surroundings = runner_.surroundings();
  options.surroundings.fork_server = fork_server_ ? &*fork_server_ : nullptr;
  options.other_descriptors = rounds_->num_clients(*round_);
  options.on_running = [this, is_first = true](int running) mutable {
    if (std::exchange(is_first, false)) {
      phases_.add("create workers", attempt_->started_at, Phases::Clock::now());
    }
    show_status(running);
    if (attempt_->rank_monitor) {
      attempt_->rank_monitor->start([this] {
        using Records = monitor::RankMonitor::Records;
        return attempt_->supervisor ? Records(attempt_->supervisor->workers()) : Records();
      });
    }
  };
  options.find_cause = [this](const auto& workers, bool is_last) {
    return attempt_->interim.find_cause(workers, evidence(), plan_.layout.num_machines == 1,
                                        is_last);
  };
  options.on_first_failure = [this](const supervision::WorkerRecord& worker) {
    on_first_failure(worker);
  };
  if (plan_.supervision.rejoins) {
    options.is_replaced = [this](const auto& worker) { return is_replaced(worker); };
    options.have_rejoined = [this](const auto& workers) { return have_rejoined(workers); };
    options.on_rejoined = [this](bool rejoined) { on_rejoined(rejoined); };
  }
  options.look_inside = [this] { return look_inside(); };
  options.job_control = &job_control_;
  options.before_stop = [this] { runner_.output().hide_status(); };
  return options;
}

/// Waits until all workers have ended. If workers are lost, joins the next round with the others.
asio::awaitable<supervision::AttemptOutcome> Job::await_workers() {
  std::exception_ptr fault;
  while (true) {
    co_await attempt_->news.passed();
    attempt_->news.close();
    if (attempt_->outcome) {
      break;
    }
    try {
      co_await renew_round();
    } catch (...) {
      fault = std::current_exception();
    }
    if (fault || attempt_->result) {
      end_replacement();
      attempt_->supervisor->on_peer_failure();
    }
  }
  for (const auto& each : {attempt_->fault, fault}) {
    if (each) {
      std::rethrow_exception(each);
    }
  }
  co_return *attempt_->outcome;
}

/// Joins the next round while the workers of this machine that were not lost run. If they have the
/// same ranks in it, or may have others, tells them where they meet the others, and starts those
/// that are lost.
asio::awaitable<void> Job::renew_round() {
  const std::optional<Round> before = co_await exchange_round();
  if (!before) {
    co_return;
  }
  if (!plan_.preload.modules.empty()) {
    co_await fork_replacements();
  }
  if (attempt_->supervisor->state() == supervision::AttemptState::holding) {
    begin_epoch(*before);
  }
}

/// Settles the round and joins the next one. Returns the round before it, or nothing if the workers
/// cannot go on: the job ends, or they have other ranks.
asio::awaitable<std::optional<Round>> Job::exchange_round() {
  const auto can_rejoin = [this](const Round& before, const Round& now) {
    return (now.machine_rank == before.machine_rank &&
            now.local_world_sizes == before.local_world_sizes) ||
           (plan_.supervision.elastic_replicas && is_even(before) && is_even(now));
  };
  co_await rounds_->end_is_known();
  if (!rounds_->known_end() || !rounds_->known_end()->restarts) {
    co_return std::nullopt;  // `follow` ends the workers, which are then reported
  }
  const report::MachineReport report{
      .machine_rank = round_->machine_rank, .host = host_, .workers = {}};
  attempt_->result = co_await rounds_->settle(false, report::encode(report));
  report_lost_machines(*attempt_->result);
  if (attempt_->result->next == RoundResult::Next::finished) {
    co_return std::nullopt;
  }
  auto next = co_await rounds_->next();
  if (!next) {  // the job has ended meanwhile
    attempt_->result->end = stop_ ? std::optional(own_end()) : rounds_->known_end();
    attempt_->result->next = RoundResult::Next::finished;
    co_return std::nullopt;
  }
  Round before = *std::exchange(round_, std::move(next));
  if (!can_rejoin(before, *round_)) {
    say("the next round has other ranks on this machine, or machines with different numbers of "
        "workers: starting all workers again");
    co_return std::nullopt;
  }
  co_return before;
}

/// The end of the attempt by the stop of this machine, of which no server may know.
AttemptEnd Job::own_end() const {
  return {.machine_rank = round_->machine_rank,
          .host = host_,
          .exit_status = stop_->exit_status,
          .cause = stop_->cause,
          .reason = stop_->reason};
}

/// Tells the workers which ranks they are in the round that replaces `before`, and starts those
/// that are lost.
void Job::begin_epoch(const Round& before) {
  MembershipPage& page = *attempt_->membership;
  // A machine may be lost after another one has joined and before the next round.
  const bool is_anyone_lost =
      page.has_lost(page.epoch()) || round_->num_kept < before.num_machines();
  attempt_->result.reset();
  attempt_->is_renewed = false;
  if (is_anyone_lost) {
    page.end_epoch();
  }
  const Assignment now = assignment(plan_, *round_, rounds_->tunnel());
  page.begin_epoch(static_cast<std::uint32_t>(now.round), meeting_of(plan_, now, *round_));
  std::vector<supervision::WorkerSpec> specs = renewed_specs();
  logs_.name_ranks(attempt_->number, specs.front().rank);
  if (attempt_->rank_monitor) {
    attempt_->rank_monitor->set_first_rank(specs.front().rank);
  }
  // Where machines join, the others first finish their step, while the new workers start.
  const std::chrono::seconds to_join =
      is_anyone_lost ? std::chrono::seconds(0) : plan_.rendezvous.join_timeout;
  attempt_->supervisor->replace(std::move(specs), plan_.supervision.shutdown_timeout + to_join);
  if (const auto end = rounds_->known_end()) {  // the new round has ended already
    follow(*end);
  }
}

/// The workers of the next round in the same attempt: they report as before, and the error files of
/// those that have ended are gone.
std::vector<supervision::WorkerSpec> Job::renewed_specs() {
  std::vector<supervision::WorkerSpec> specs = worker_specs();
  for (const supervision::WorkerRecord& worker : attempt_->supervisor->workers()) {
    std::error_code ignored;  // of the process that is lost
    if (const std::string file = logs_.error_file(attempt_->number, worker.local_rank);
        worker.end && !file.empty()) {
      std::filesystem::remove(file, ignored);
    }
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].reports = attempt_->specs[i].reports;
    specs[i].reports_variable = attempt_->specs[i].reports_variable;
  }
  return specs;
}

/// Waits until the workers can be forked from a process that has imported --preload's modules.
asio::awaitable<void> Job::prepare_fork_server() {
  if (plan_.preload.modules.empty()) {
    co_return;
  }
  const auto begin = Phases::Clock::now();
  const bool is_first = !fork_server_;
  if (is_first) {
    supervision::WorkerSpec like;
    like.command = worker_command(plan_, first_local_rank(plan_.layout));
    like.environment = environment_without_rank(plan_, environment_);
    like.working_directory = plan_.working_directory;
    like.cores = plan_.binding.workers.front().cpus;
    like.numa_node = plan_.binding.workers.front().numa_node;
    fork_server_.emplace(
        runner_.io().get_executor(), runner_.output(),
        supervision::ForkServer::Options{.modules = plan_.preload.modules,
                                         .interpreter = plan_.preload.interpreter,
                                         .worker = std::move(like),
                                         .descriptors = runner_.surroundings().descriptors});
  }
  co_await fork_server_->ready();
  if (is_first) {
    phases_.add("import the modules of --preload", begin, Phases::Clock::now());
  }
}

/// Forks processes for `count` workers, which the next ones that are started become (--preload).
asio::awaitable<void> Job::fork_workers(int count) {
  co_await prepare_fork_server();  // if it was killed
  co_await fork_server_->fork(count, runner_.surroundings().cgroup);
}

/// Forks processes for the workers that have ended. Others may end meanwhile.
asio::awaitable<void> Job::fork_replacements() {
  const auto num_ended = [this] {
    return static_cast<int>(
        std::ranges::count_if(attempt_->supervisor->workers(),
                              [](const auto& worker) { return worker.end.has_value(); }));
  };
  for (int forked = 0; forked < num_ended();) {
    forked = num_ended();
    co_await fork_workers(forked);
  }
}

output::OutputMux::Options Job::output_options() {
  output::OutputMux::Options options;
  options.folds_lines = plan_.output.folds_lines;
  options.status_line = plan_.output.status_line;
  options.shows_json_bare = log_format() == LogFormat::json;
  // A program with Identity::none writes to the launcher's own streams and gets EPIPE itself.
  if (plan_.identity != Identity::none || plan_.is_controlled) {
    options.on_lost = [this](const output::Lost& lost) { on_lost(lost); };
  }
  return options;
}

void Job::show_status(int running) {
  runner_.output().set_status(
      {running, plan_.layout.local_world_size, round_->restart_count, started_at_});
}

std::vector<supervision::WorkerSpec> Job::worker_specs() {
  Assignment assignment = job::assignment(plan_, *round_, rounds_->tunnel());
  assignment.round = attempt_->number;
  std::vector<supervision::WorkerSpec> specs;
  for (int index = 0; index < plan_.layout.local_world_size; ++index) {
    const int local_rank = first_local_rank(plan_.layout) + index;
    supervision::WorkerSpec& spec = specs.emplace_back();
    spec.rank = assignment.first_rank + index;
    spec.local_rank = local_rank;
    spec.command = worker_command(plan_, local_rank);
    spec.environment = worker_environment(plan_, assignment, environment_, local_rank);
    spec.environment.erase(kMainAddressVariable);
    if (rounds_->tunnel() && plan_.identity != Identity::none) {
      spec.environment[kMainAddressVariable] = round_->store_host;
    }
    spec.working_directory = plan_.working_directory;
    spec.inherits_stdin = alone_ ? plan_.supervision.stdin_rank.has_value()
                                 : plan_.supervision.stdin_rank == spec.rank;
    spec.process_group = spec.inherits_stdin ? job_control_.group() : 0;
    spec.inherits_output = plan_.identity == Identity::none;
    spec.targets = logs_.targets(attempt_->number, local_rank);
    if (has_run_) {
      show_unwritable(spec.targets);
    }
    if (!alone_ || !plan_.output.line_prefix.empty()) {
      spec.prefix =
          output::line_prefix(plan_.output.line_prefix, {plan_.role, spec.rank, local_rank, host_},
                              plan_.layout.num_machines);
    }
    const Placement& placement = plan_.binding.workers[static_cast<std::size_t>(index)];
    spec.cores = placement.cpus;
    spec.numa_node = placement.numa_node;
  }
  give_snapshot_memory(specs);
  give_membership(specs);
  return specs;
}

/// Gives the workers a page that tells them, also inside a collective, that they wait in vain. They
/// open it as they do their memory for snapshots.
void Job::give_membership(std::vector<supervision::WorkerSpec>& specs) {
  if (alone_ || plan_.identity == Identity::none) {
    return;
  }
  try {
    if (!attempt_->membership) {
      using enum MembershipPage::Changes;
      MembershipPage page = MembershipPage::create(plan_.supervision.elastic_replicas ? machines
                                                   : plan_.supervision.rejoins        ? processes
                                                                                      : nothing);
      page.begin_epoch(static_cast<std::uint32_t>(round_->round),
                       meeting_of(plan_, assignment(plan_, *round_, rounds_->tunnel()), *round_));
      attempt_->membership.emplace(std::move(page));
    }
  } catch (const Error& error) {
    if (plan_.supervision.rejoins) {
      throw;  // the workers of this machine would not meet the others
    }
    say(error.what());
    return;
  }
  for (supervision::WorkerSpec& spec : specs) {
    spec.environment[settings::kMembershipVariable] =
        fmt::format("{}/proc/{}/fd/{}",
                    plan_.supervision.rejoins ? MembershipPage::kRequired : std::string_view(),
                    ::getpid(), attempt_->membership->fd());
  }
}

/// Gives each worker a file in memory for its last snapshots, which the next worker with its place
/// gets too (memory_checkpoint_every). A worker opens it, and reads those of the others, by paths
/// in this process, so that no descriptor, which would keep the memory, is passed on to what the
/// worker starts.
void Job::give_snapshot_memory(std::vector<supervision::WorkerSpec>& specs) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const settings::Environment& environment = specs[i].environment;
    const auto wanted = environment.find("ACC_MEMORY_CHECKPOINT_EVERY");
    if (wanted == environment.end() || wanted->second == "0") {
      return;
    }
    if (snapshot_memories_.size() <= i) {
      UniqueFd memory(::memfd_create("acclaunch-snapshots", MFD_CLOEXEC));
      if (!memory) {
        say(fmt::format("no snapshots in memory: memfd_create failed: {}",
                        std::generic_category().message(errno)));
        return;
      }
      snapshot_memories_.push_back(std::move(memory));
    }
  }
  std::string paths;
  for (const UniqueFd& memory : snapshot_memories_) {
    paths += fmt::format("{}/proc/{}/fd/{}", paths.empty() ? "" : ":", ::getpid(), memory.get());
  }
  for (supervision::WorkerSpec& each : specs) {
    each.environment[settings::kSnapshotMemoryVariable] = paths;
  }
}

/// Shows the output of a restarted worker whose log file can no longer be written: a disk that is
/// full or gone does not end the job. At the first start the launcher refuses such a file.
void Job::show_unwritable(output::WorkerTargets& targets) {
  const auto lost = [this](const std::string& file) {
    try {
      return !file.empty() && !output::open_log(file);
    } catch (const Error& error) {
      say(fmt::format("{}; this output is only shown", error.what()), LogLevel::err);
      return true;
    }
  };
  for (output::StreamTarget* const target : {&targets.out, &targets.err}) {
    if (lost(target->file)) {
      target->file.clear();
      target->console = true;
    }
    if (lost(target->filter.file)) {
      target->filter = {};
    }
  }
}

/// If the job can be watched, samples the workers while they run, and gives each one a descriptor
/// for reports.
void Job::monitor_workers(std::vector<supervision::WorkerSpec>& specs) {
  const auto interval = rounds_->status_interval();
  if (!interval) {
    return;
  }
  std::vector<monitor::RankMonitor::Worker> workers;
  workers.reserve(specs.size());
  for (const supervision::WorkerSpec& spec : specs) {
    workers.push_back({.rank = spec.rank,
                       .local_rank = spec.local_rank,
                       .flight_record = logs_.flight_record(attempt_->number, spec.local_rank),
                       .gpu = gpu_of_worker(plan_, spec.environment, spec.local_rank)});
  }
  // NVML is opened only if a worker has a GPU.
  std::shared_ptr<host::GpuMonitor> gpus;
  if (std::ranges::any_of(workers, [](const auto& each) { return each.gpu.has_value(); })) {
    gpus = std::make_shared<host::GpuMonitor>();
  }
  attempt_->rank_monitor.emplace(
      runner_.io().get_executor(), std::move(workers), *interval,
      [this, gpus](const auto& worker, const flight::Record* flight, RankStatus& status) {
        if (worker.gpu && status.state == RankStatus::State::running) {
          const host::GpuUsage usage = gpus->usage(*worker.gpu);
          status.gpu_percent = usage.percent;
          status.gpu_bytes = usage.used_bytes;
        }
        if (flight != nullptr) {
          report::add_collective(*flight, std::chrono::system_clock::now(), status);
        }
        report::add_stderr_lines(runner_.output().last_stderr_lines(worker.rank), status);
      },
      [this](std::vector<RankStatus> ranks) { rounds_->show(std::move(ranks)); });
  for (std::size_t i = 0; plan_.has_records && i < specs.size(); ++i) {
    specs[i].reports = attempt_->rank_monitor->report_descriptor(i);
    specs[i].reports_variable = kReportVariable;
  }
}

/// Shows the report to those who watch the job. All machines have the same one; the first of those
/// that could report sends it.
void Job::show_report(const report::JobReport& report, const RoundResult& round_result) {
  const auto first = std::ranges::find_if(
      round_result.machines, [](const auto& machine) { return !machine.report.empty(); });
  if (rounds_->status_interval() && first != round_result.machines.end() &&
      first->machine_rank == round_->machine_rank) {
    rounds_->show_report(report::report_json(report));
  }
}

/// Sends this machine's report and receives the round result: the reports of all machines and what
/// follows.
asio::awaitable<RoundResult> Job::settle(const supervision::AttemptOutcome& outcome) {
  if (outcome.gave_up) {
    rounds_->end({.exit_status = 1,
                  .cause = Cause::other,
                  .reason = "some workers on " + host_ + " could not be killed"});
  }
  co_await rounds_->end_is_known();
  const report::MachineReport report = report::machine_report(outcome, evidence());
  const bool failed = std::ranges::any_of(report.workers, &report::WorkerReport::failed);
  co_return co_await rounds_->settle(failed, report::encode(report));
}

report::AttemptEvidence Job::evidence() {
  return {.machine_rank = round_->machine_rank,
          .host = host_,
          .working_directory = plan_.working_directory,
          .learned_at = attempt_->learned_at,
          .started_at = attempt_->started_at,
          .files =
              [this, attempt = attempt_->number](int local_rank) {
                return report::AttemptEvidence::Files{
                    .flight_record = logs_.flight_record(attempt, local_rank),
                    .error_file = logs_.error_file(attempt, local_rank)};
              },
          .output = runner_.output(),
          .kernel = attempt_->kernel};
}

/// Tells the acclaunch that started this one which machines are lost. It would otherwise wait for
/// their clients.
void Job::report_lost_machines(const RoundResult& round_result) {
  for (const rendezvous::ReportedMachine& machine : round_result.machines) {
    if (control_ && machine.report.empty()) {
      remote_launch::control::say(remote_launch::control::Lost{machine.host});
    }
  }
}

/// Adds the facts of the plan to the report of the attempt.
report::JobReport Job::report_of(const RoundResult& round_result) {
  report::JobReport report = report::job_report(round_result);
  report.command = plan_.command;
  report.run_id = plan_.rendezvous.run_id;
  report.attempt = round_->restart_count;
  report.max_restarts = plan_.supervision.max_restarts;
  if (report.first_failure) {
    const report::WorkerReport& worker = report.workers[*report.first_failure];
    report.command = worker_command(plan_, worker.local_rank);
    if (round_result.next == RoundResult::Next::next_round) {
      report.restarts_after = pauses_.next(worker.ran_for);
    }
  }
  return report;
}

/// Prints the report and writes its files: report.json in the log folder and, after the last
/// attempt, the file that TORCHELASTIC_ERROR_FILE names, as torchrun does.
void Job::publish(report::JobReport report, const RoundResult& round_result) {
  if (gave_up()) {
    say("some processes could not be killed and are still running", LogLevel::err);
  }
  if (!report.first_failure && report.reason.empty()) {
    return;
  }
  report.stacks = attempt_->stacks;
  report.log_folder = logs_.kept_folder(attempt_->number);
  report.report_file = logs_.report_file(attempt_->number);
  const bool is_explained =
      plan_.explains_failure && report.first_failure && report.exit_status == 1;
  if (!is_explained && prints_report(plan_, round_->machine_rank, round_result)) {
    notice_lines(Component::launcher, LogLevel::critical, "", format_report(report));
  }
  show_report(report, round_result);
  if (!report.report_file.empty()) {
    leave_file(report.report_file, report::report_json(report));
  }
  const std::string own_file = host::value_of(environment_, host::variables.error_file);
  if (!own_file.empty() && report.first_failure && !report.restarts_after) {
    const report::WorkerReport& worker = report.workers[*report.first_failure];
    const bool is_here = worker.machine_rank == round_->machine_rank;
    const std::string file = is_here ? logs_.error_file(attempt_->number, worker.local_rank) : "";
    leave_file(own_file, report::root_cause_file(worker, report::read_error_file(file).text));
  }
}

void Job::leave_file(const std::string& path, const std::string& text) {
  try {
    write_file(path, text, Overwrite::yes);
  } catch (const Error& error) {
    say(error.what(), LogLevel::err);
  }
}

/// Joins the next round, after a pause if workers failed. False if the job ends instead.
asio::awaitable<bool> Job::go_on(const report::JobReport& report) {
  if (report.restarts_after) {
    advance(JobEvent::pause);
  }
  if (state_ == JobState::pausing) {
    pause_.expires_after(*report.restarts_after);
    co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  if (state_ == JobState::withdrawing) {
    status_ = stop_->exit_status;
    co_await rounds_->leave();
    co_return false;
  }
  const Round before = *round_;
  const bool begins = co_await join_round();
  if (!begins) {
    round_ = before;
    status_ = rounds_->known_end() ? rounds_->known_end()->exit_status : 0;
    co_return false;
  }
  co_return co_await begin_attempt(before.restart_count);
}

/// Announces an attempt in a new round. False after a stop request.
asio::awaitable<bool> Job::begin_attempt(int restarts_before) {
  if (state_ == JobState::withdrawing) {  // the workers of the last round ran when it was formed
    status_ = stop_->exit_status;
    co_await rounds_->leave();
    co_return false;
  }
  if (state_ != JobState::joining) {
    advance(JobEvent::join);
  }
  try {
    logs_.open_attempt(round_->round);
  } catch (const Error& error) {  // a disk that is full or gone does not end the job
    say(error.what(), LogLevel::err);
  }
  if (round_->restart_count > restarts_before) {
    announce("restart " + std::to_string(round_->restart_count) + " of " +
                 std::to_string(plan_.supervision.max_restarts),
             LogLevel::info);
  } else {
    say_who_is_here();
  }
  co_return true;
}

/// Announces the members of a round that follows a change of membership.
void Job::say_who_is_here() {
  const Assignment now = assignment(plan_, *round_, rounds_->tunnel());
  const auto count = [](int number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
  };
  announce("round " + std::to_string(now.round) + ": " + count(now.num_machines, "machine") + ", " +
               count(now.world_size, "worker") + "; this is machine " +
               std::to_string(now.machine_rank),
           LogLevel::info);
}

void Job::note_phases(const supervision::AttemptOutcome& outcome) {
  if (!phases_.wanted()) {
    return;
  }
  for (const supervision::WorkerRecord& worker : outcome.workers) {
    const auto first_output = runner_.output().first_output(worker.rank);
    if (first_output) {
      phases_.add(worker.rank, "until the first output", attempt_->started_at, *first_output);
    }
    if (worker.end) {
      phases_.add(worker.rank, first_output ? "after the first output" : "without output",
                  first_output.value_or(attempt_->started_at), worker.died_at);
    }
  }
}

/// Adds the launcher's phases to the machine's timeline, which the ranks have written.
void Job::write_phases() {
  if (!phases_.wanted() || !round_) {
    return;
  }
  try {
    phases_.finish(trace_file(plan_.output, round_->machine_rank), round_->machine_rank, host_);
  } catch (const Error& error) {
    say(error.what(), LogLevel::err);
  }
}

void Job::announce(const std::string& line, LogLevel level) {
  if (const auto head = job_line_head(plan_, round_, host_)) {
    notice(Component::launcher, level, *head, line);
  }
}

void Job::close() {
  rounds_->close();
  runner_.close();
  if (control_) {
    control_->close();
  }
}

int run_job(const LaunchPlan& plan, const settings::Environment& environment,
            supervision::Guard guard, std::chrono::steady_clock::time_point begun) {
  return Job(plan, environment, std::move(guard), begun).run();
}

}  // namespace acc::launcher::job
