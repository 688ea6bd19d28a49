// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "remote_launch/client_command.hpp"
#include "remote_launch/client_end.hpp"
#include "remote_launch/control_message.hpp"
#include "remote_launch/control_sender.hpp"
#include "supervision/runner.hpp"
#include "supervision/worker_process.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace acc::launcher::remote_launch {

/// Starts and watches the launchers on all machines. Not thread-safe: everything runs on the event
/// loop's thread.
class RemoteJob {
 public:
  RemoteJob(const LaunchPlan& plan, const settings::Environment& environment,
            supervision::Guard guard);
  /// Runs until all clients have ended. Returns the exit status of the job.
  int run();

 private:
  /// A client process with its state.
  struct Client {
    explicit Client(ClientCommand c, int r) : command(std::move(c)), rank(r) {}

    ClientCommand command;
    int rank;
    Heard heard;
    Group group;
    bool was_cut = false;  ///< killed from here, so its exit status has no meaning
    std::shared_ptr<ControlSender> input;
    std::optional<supervision::WorkerProcess> process;
    std::optional<ClientEnd> end;
  };

  void make_log_folder();
  void begin_more();
  void begin(Client& client);
  supervision::WorkerSpec client_spec(const Client& client, int input) const;
  boost::asio::awaitable<void> watch(Client& client);
  void judge(Client& client, const supervision::ProcessEnd& end);
  void on_end_of(Client& client);
  void close_when_all_ended();

  std::string_view hear(Client& client, std::string_view line);
  void on_answer(Client& client, const control::Answer& answer);
  void on_start_failure(const std::string& name, const std::string& reason);
  void on_signal(int signal);
  void on_lost(const output::Lost& lost);
  void stop(int signal);
  void end_job(int exit_status, const std::string& reason);

  void beat();
  void send_all(const control::Message& message);
  void signal_uncontrolled(int signal);
  void cut(Client& client);
  void cut_unstarted();
  void cut_silent();
  bool waits_in_vain(const Client& client) const;
  void end_waiting(Client& client);
  void limit(std::chrono::milliseconds time);
  int exit_status() const;

  void say(const std::string& line) {
    notice(Component::launcher, LogLevel::warn, "acclaunch: ", line);
  }

  const LaunchPlan& plan_;
  const settings::Environment& environment_;
  supervision::Runner runner_;
  std::string log_folder_;
  std::deque<Client> clients_;
  boost::asio::steady_timer beat_;
  boost::asio::steady_timer patience_;  ///< after a failure to start: time for the others to start
  boost::asio::steady_timer limit_;     ///< time limit for all clients to end
  bool is_over_ = false;                ///< a machine has reported the end of the job
  bool is_closed_ = false;              ///< all clients have ended
  std::optional<int> stop_;             ///< the first stop signal
  std::optional<int> failure_;          ///< exit status if the job is ended from here
};

}  // namespace acc::launcher::remote_launch
