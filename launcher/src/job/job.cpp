#include "job/job.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/server.hpp"
#include "job/peers.hpp"
#include "output/output_mux.hpp"
#include "supervision/descendants.hpp"
#include "supervision/signals.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <sys/signalfd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::JobEnd;
using rendezvous::Server;

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

class Job {
 public:
  Job(const LaunchPlan& plan, const plugins::Environment& environment, UniqueFd guardian);
  ~Job() { remove_error_files(); }
  int run();

 private:
  asio::awaitable<void> work();
  asio::awaitable<void> watch_signals();
  asio::awaitable<void> watch_guardian();

  void serve_store();
  asio::awaitable<void> meet_other_machines();
  std::vector<WorkerSpec> worker_specs() const;
  asio::awaitable<JobOutcome> run_workers();
  void on_stop_signal(int signal);
  void on_first_failure(const WorkerRecord& worker);
  void on_peer_end(const JobEnd& end);
  void report(const JobOutcome& outcome);
  asio::awaitable<void> part_from_machines();
  void close();

  /// One line of the launcher's own on stderr, whole among the workers' lines.
  void say(const std::string& line) { output_.write_stderr("acclaunch: " + line + "\n"); }
  std::string error_file(int local_rank) const;
  void remove_error_files() const;

  const LaunchPlan& plan_;
  const plugins::Environment& environment_;
  const std::string host_ = host_name();
  asio::io_context io_{1};
  asio::posix::stream_descriptor guardian_;
  asio::posix::stream_descriptor signals_;
  OutputMux output_;
  std::optional<Server> server_;
  std::optional<Peers> peers_;
  std::uint16_t port_ = 0;
  std::optional<Supervisor> supervisor_;
  bool workers_run_ = false;
  bool stopping_ = false;
  int status_ = 0;
};

Job::Job(const LaunchPlan& plan, const plugins::Environment& environment, UniqueFd guardian)
    : plan_(plan),
      environment_(environment),
      guardian_(io_, guardian.release()),
      signals_(io_),
      output_(io_.get_executor(), {.prefix = plan.num_processes > 1}),
      port_(plan.rendezvous.port) {
  const sigset_t signals = handled_signals();
  signals_.assign(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
}

int Job::run() {
  asio::co_spawn(io_, watch_guardian(), asio::detached);
  asio::co_spawn(io_, watch_signals(), asio::detached);
  asio::co_spawn(io_, work(), [this](const std::exception_ptr& error) {
    close();
    if (error) {
      std::rethrow_exception(error);
    }
  });
  io_.run();
  return status_;
}

asio::awaitable<void> Job::work() {
  for (const std::string& notice : plan_.notices) {
    say(notice);
  }
  if (plan_.machine_rank == 0) {
    serve_store();
  }
  if (plan_.num_machines > 1) {
    co_await meet_other_machines();
  }
  const JobOutcome outcome = co_await run_workers();
  status_ = outcome.exit_status();
  co_await output_.drain();
  report(outcome);
  if (peers_) {
    co_await part_from_machines();
  }
  co_await output_.flushed();
  if (outcome.gave_up) {
    std::_Exit(status_);  // the usual way out would wait for the workers that cannot be killed
  }
}

asio::awaitable<void> Job::watch_guardian() {
  co_await guardian_.async_wait(asio::posix::stream_descriptor::wait_read,
                                asio::as_tuple(asio::use_awaitable));
  if (!guardian_.is_open()) {
    co_return;  // the job is over
  }
  if (peers_) {
    peers_->announce(128 + SIGKILL, "acclaunch on " + host_ + " is gone");
  }
  end_descendants();
  remove_error_files();
  if (peers_) {  // time for that one message
    asio::steady_timer moment(io_, std::chrono::milliseconds(500));
    co_await moment.async_wait(asio::use_awaitable);
  }
  ::_exit(128 + SIGKILL);
}

asio::awaitable<void> Job::watch_signals() {
  for (;;) {
    co_await signals_.async_wait(asio::posix::stream_descriptor::wait_read,
                                 asio::as_tuple(asio::use_awaitable));
    if (!signals_.is_open()) {
      co_return;
    }
    signalfd_siginfo info{};
    while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (is_stop_signal(signal)) {
        on_stop_signal(signal);
      } else if (workers_run_ && (signal == SIGCHLD || !is_own_signal(signal))) {
        supervisor_->on_signal(signal);
      }
    }
  }
}

void Job::on_stop_signal(int signal) {
  if (peers_) {
    peers_->announce(128 + signal, "stopped by " + signal_name(signal));
  }
  if (!workers_run_) {  // nothing is there yet, or only the last messages are outstanding
    status_ = 128 + signal;
    io_.stop();
    return;
  }
  say(signal_name(signal) + (std::exchange(stopping_, true) ? " while ending: killing the workers"
                                                            : ": ending the workers"));
  supervisor_->on_signal(signal);
}

void Job::serve_store() {
  // One machine's store is for its own workers; other machines may come by any interface.
  const std::string address = plan_.num_machines == 1 ? plan_.rendezvous.address : "";
  try {
    server_.emplace(io_, address, port_);
  } catch (const Error& error) {
    if (plan_.rendezvous.port_was_given || plan_.num_machines > 1 || port_ == 0) {
      throw Error(Errc::config, error.what());
    }
    server_.emplace(io_, address, 0);
    say("port " + std::to_string(port_) + " is in use by " +
        Server::port_owner(port_).value_or("somebody else") + "; the store takes the free port " +
        std::to_string(server_->port()));
  }
  port_ = server_->port();
}

asio::awaitable<void> Job::meet_other_machines() {
  peers_.emplace(io_.get_executor(), plan_, host_, [this](const std::string& line) { say(line); });
  co_await peers_->join();
  peers_->watch([this](const JobEnd& end) { on_peer_end(end); });
}

std::vector<WorkerSpec> Job::worker_specs() const {
  const Assignment assignment = planned_assignment(plan_, port_);
  std::vector<WorkerSpec> specs;
  for (int local_rank = 0; local_rank < plan_.local_world_size; ++local_rank) {
    WorkerSpec& spec = specs.emplace_back();
    spec.rank = assignment.first_rank + local_rank;
    spec.local_rank = local_rank;
    spec.command = worker_command(plan_, local_rank);
    spec.environment = worker_environment(plan_, assignment, environment_, local_rank);
    spec.working_directory = plan_.working_directory;
    spec.inherits_stdin = plan_.num_processes == 1;
    const Placement& placement = plan_.placements[static_cast<std::size_t>(local_rank)];
    spec.cores = placement.cpus;
    spec.numa_node = placement.numa_node;
  }
  return specs;
}

asio::awaitable<JobOutcome> Job::run_workers() {
  std::vector<WorkerSpec> specs = worker_specs();
  for (const WorkerSpec& spec : specs) {
    std::filesystem::create_directories(
        std::filesystem::path(error_file(spec.local_rank)).parent_path());
  }
  Supervisor::Options options;
  options.shutdown_timeout = plan_.shutdown_timeout;
  options.on_first_failure = [this](const WorkerRecord& worker) { on_first_failure(worker); };
  supervisor_.emplace(io_.get_executor(), output_, std::move(options));
  workers_run_ = true;
  JobOutcome outcome = co_await supervisor_->run(std::move(specs));
  workers_run_ = false;
  co_return outcome;
}

void Job::on_first_failure(const WorkerRecord& worker) {
  stopping_ = true;
  const std::string line = failure_line(worker, host_);
  if (plan_.local_world_size > 1) {
    say(line + "; ending the others");
  }
  if (peers_) {
    peers_->announce(worker.end->shell_status(), line);
  }
}

void Job::on_peer_end(const JobEnd& end) {
  if (end.machine_rank != plan_.machine_rank) {
    say(peers_->name_of(end.machine_rank) + " ended the job: " + end.reason);
  }
  stopping_ = true;
  if (workers_run_) {
    supervisor_->on_peer_failure();
  }
}

void Job::report(const JobOutcome& outcome) {
  if (outcome.gave_up) {
    say("some workers could not be killed and are still there");
  }
  if (!outcome.first_failure) {
    return;
  }
  FailureReport failure;
  failure.command = plan_.command;
  failure.host = host_;
  failure.worker = outcome.workers[*outcome.first_failure];
  failure.ran_for = outcome.ran_for;
  failure.error_message = error_file_message(error_file(failure.worker.local_rank));
  failure.last_stderr_lines = output_.last_stderr_lines(failure.worker.rank);
  failure.others = outcome.workers;
  failure.others.erase(failure.others.begin() +
                       static_cast<std::ptrdiff_t>(*outcome.first_failure));
  output_.write_stderr(format_report(failure));
}

asio::awaitable<void> Job::part_from_machines() {
  const std::optional<JobEnd> end = co_await peers_->finish();
  if (!end) {
    co_return;
  }
  status_ = end->exit_status;
  if (end->machine_rank != plan_.machine_rank) {
    say("the job ended first on " + peers_->name_of(end->machine_rank) + ": " + end->reason);
  }
}

void Job::close() {
  if (server_ && peers_) {
    server_->stop();  // lets the other machines take their last answers
  } else {
    server_.reset();
  }
  signals_.close();
  guardian_.close();
}

std::string Job::error_file(int local_rank) const {
  return plan_.output.directory + "/attempt_0/" + std::to_string(local_rank) + "/error.json";
}

void Job::remove_error_files() const {
  std::error_code ignored;
  std::filesystem::remove_all(plan_.output.directory, ignored);
  std::filesystem::remove(std::filesystem::path(plan_.output.directory).parent_path(), ignored);
}

}  // namespace

int run_job(const LaunchPlan& plan, const plugins::Environment& environment, UniqueFd guardian) {
  return Job(plan, environment, std::move(guardian)).run();
}

}  // namespace acc::launcher
