// SPDX-License-Identifier: Apache-2.0
// The program acclaunch. A sub-command runs in this process. A launch is split into guardian,
// keeper and supervisor (run_guarded); the supervisor process makes the plan and runs the job.
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/base/written_file.hpp"
#include "acc/launcher/command_line.hpp"
#include "acc/launcher/front_end.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "host/own_variables.hpp"
#include "job/job.hpp"
#include "job/speaker.hpp"
#include "remote_launch/control_message.hpp"
#include "remote_launch/remote_launcher.hpp"
#include "remote_launch/start_message.hpp"
#include "spawn/child_launcher.hpp"
#include "spawn/create_child.hpp"
#include "supervision/guardian.hpp"
#include "supervision/signals.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace acc::launcher;

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

const auto kBegun = std::chrono::steady_clock::now();

struct Failure {
  std::string reason;
  int exit_status = 1;
};

/// Returns the message and exit status for an exception. A path of the user may be one that the
/// system refuses, such as a loop of symbolic links. Any other exception than these and Error is a
/// bug.
Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const acc::Error& mistake) {
    return {mistake.what(), acc::exit_status(mistake)};
  } catch (const std::filesystem::filesystem_error& mistake) {
    return {acc::printable(mistake.path1().string()) + ": " + mistake.code().message(), 2};
  } catch (const std::exception& mistake) {
    return {std::string("internal error: ") + mistake.what(), 1};
  }
}

void print_failure(const std::string& head, const std::string& reason) {
  acc::notice_lines(acc::Component::launcher, acc::LogLevel::critical, head, reason);
}

int say_why_not(const std::exception_ptr& error) {
  const Failure failure = failure_of(error);
  print_failure("acclaunch: ", failure.reason);
  return failure.exit_status;
}

/// Flushes stdout. Returns `status`, or 1 if a sub-command's output could not be written (disk
/// full).
int answered(int status) {
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && status == 0) {
    print_failure("acclaunch: ",
                  std::string("cannot write to standard output: ") + std::strerror(errno));
    return 1;
  }
  return status;
}

/// Sets the log by the flags and variables, before a process is forked. The plan reports wrong
/// words together with all other faults.
void prepare_log(const Flags& flags) {
  acc::LogWords words = acc::log_words_from_environment();
  if (const Flags::Value* format = flags.find("log_format"_key)) {
    words.format.value = format->text;
  }
  if (const Flags::Value* level = flags.find("log_level"_key)) {
    words.level.value = level->text;
    words.components.value.clear();
  }
  acc::prepare_log(words);
}

int run_sub_command(const CommandLine& line) {
  set_log_settings(acc::read_log_settings(acc::log_words_from_environment()));
  try {
    return answered(line.sub_command->run(line.arguments));
  } catch (const acc::launcher::HelpShown&) {
    return answered(0);
  }
}

/// Appends the variables for other machines to a file such as .deepspeed_env.
void append_file(const LaunchPlan& plan) {
  if (!plan.appended_file) {
    return;
  }
  const auto& [path, text] = *plan.appended_file;
  const acc::UniqueFd file = acc::open_file(path, O_WRONLY | O_APPEND);
  if (::write(file.get(), text.data(), text.size()) != std::ssize(text)) {
    throw acc::file_error("write", path, errno);
  }
}

/// Makes the plan of a launch. Reads files and queries the GPU driver, either of which may hang;
/// therefore signals end the process immediately until the plan is complete (UsualSignals).
LaunchPlan make_plan(const FrontEnd& front_end, const Flags& flags,
                     const acc::settings::Environment& environment, int guardian) {
  const supervision::UsualSignals until_something_runs(guardian);
  try {
    return front_end.plan(flags, environment, detect_host_facts(environment));
  } catch (const acc::Error& error) {
    if (error.code() != acc::Errc::no_program) {
      throw;
    }
    throw acc::Error(error.code(), error.what() + sub_command_meant(flags));
  }
}

/// Runs a diagnostic of this machine alone, after the machines could not meet. Takes some seconds,
/// in which signals end this process and the diagnostic.
void run_unmet(const std::vector<std::string>& command, int guardian) {
  constexpr std::chrono::seconds kLimit{60};
  const supervision::UsualSignals until_it_has_ended(guardian);
  const pid_t child =
      spawn::ChildLauncher().start(command.front(), {command.begin() + 1, command.end()});
  if (child > 0) {
    spawn::reap_within(child, kLimit);  // the keeper kills one that runs on
  }
}

/// Runs the job. If the rendezvous fails, prints the diagnostic of this machine before the error.
int run_plan(const LaunchPlan& plan, const acc::settings::Environment& environment,
             supervision::Guard guard) {
  const acc::UniqueFd guardian(::fcntl(guard.alive.get(), F_DUPFD_CLOEXEC, 0));
  try {
    return job::run_job(plan, environment, std::move(guard), kBegun);
  } catch (const acc::Error&) {
    if (!plan.unmet_command.empty()) {
      run_unmet(plan.unmet_command, guardian.get());
    }
    throw;
  }
}

/// Logs what was detected and chosen. `acclaunch explain` shows all of it.
void log_plan(const LaunchPlan& plan) {
  const acc::Logger log = acc::logger(acc::Component::launcher);
  if (!log.should_log(acc::LogLevel::debug)) {
    return;
  }
  const RendezvousPlan& rendezvous = plan.rendezvous;
  log.debug("job manager: {}", plan.manager.name.empty() ? std::string("none")
                                                         : plan.manager.job + ", detected by " +
                                                               plan.manager.detected_by);
  log.debug("device: {}, GPUs of this machine: {}",
            plan.device == acc::settings::Device::cuda ? "cuda" : "cpu", plan.gpus.devices.size());
  log.debug(
      "machines: {}, workers here: {}, workers in total: {}", plan.layout.num_machines,
      plan.layout.local_world_size,
      plan.layout.num_processes ? std::to_string(*plan.layout.num_processes) : "by the rendezvous");
  log.debug("rendezvous: {} at {}:{}, run id {}",
            rendezvous.backend == RendezvousPlan::Backend::c10d    ? "c10d"
            : rendezvous.backend == RendezvousPlan::Backend::fixed ? "static"
                                                                   : "none",
            rendezvous.address, rendezvous.port, rendezvous.run_id);
  log.debug("settings: {} (origin {})", to_string(plan.sharding.strategy), origin_of(plan.mode));
}

/// Runs a launch in the supervisor process. `head`: receives the prefix of the launcher's own
/// lines, which names the host in a job of several machines.
int launch(const FrontEnd& front_end, const Flags& flags, supervision::Guard guard,
           std::string& head) {
  const auto environment = acc::settings::current_environment();
  const LaunchPlan plan = make_plan(front_end, flags, environment, guard.alive.get());
  head = job::line_head(plan, host_name());
  log_plan(plan);
  if (plan.start && remote_launch::was_started(environment)) {  // would start launchers without end
    throw acc::Error(acc::Errc::internal,
                     "acclaunch was started by another acclaunch and must not start machines too");
  }
  if (plan.start) {
    return remote_launch::start_machines(plan, environment, std::move(guard));
  }
  append_file(plan);
  const int status = run_plan(plan, environment, std::move(guard));
  return status == 0 && !plan.success.empty() ? print(plan.success + "\n") : status;
}

/// Runs `body` in the supervisor process and returns the exit status. Prints the error if it fails.
/// If another acclaunch started this one over ssh, pdsh or srun, also sends it the result.
int launch_to_the_end(const std::function<int(std::string& head)>& body) {
  Failure failure;
  std::string head;
  try {
    failure.exit_status = body(head);
  } catch (...) {
    failure = failure_of(std::current_exception());
    if (head.empty()) {  // failed before the plan was made
      head = remote_launch::was_started(acc::settings::current_environment())
                 ? "acclaunch on " + host_name() + ": "
                 : "acclaunch: ";
    }
    print_failure(head, failure.reason);
  }
  std::fflush(stdout);
  if (host::is_controlled(acc::settings::current_environment())) {
    remote_launch::control::say(
        remote_launch::control::Ended{host_name(), failure.exit_status, failure.reason});
  }
  return failure.exit_status;
}

/// Runs `acclaunch remote` in the supervisor process: reads the request of another acclaunch from
/// stdin, and runs the launch or sub-command that it contains.
int launch_from_afar(std::span<const std::string> arguments, supervision::Guard guard,
                     std::string& head) {
  std::vector<std::string> asked;
  {
    const supervision::UsualSignals until_something_runs(guard.alive.get());
    asked = remote_launch::become_remote(arguments);
  }
  if (host::is_controlled(acc::settings::current_environment())) {
    remote_launch::control::say(remote_launch::control::Started{host_name()});
  }
  const CommandLine line = read_command_line("acclaunch", asked);
  if (line.sub_command != nullptr) {
    return run_sub_command(line);
  }
  const Flags flags = parse_flags(*line.front_end, line.arguments);
  prepare_log(flags);
  return launch(*line.front_end, flags, std::move(guard), head);
}

int run(int argc, char** argv) {
  const std::vector<std::string> arguments = with_help_as_flag({argv + 1, argv + argc});
  if (!arguments.empty() && arguments.front() == remote_launch::kRemoteCommand) {
    return supervision::run_guarded(argc, argv, [&](supervision::Guard guard) {
      return launch_to_the_end([&](std::string& head) {
        return launch_from_afar(std::span(arguments).subspan(1), std::move(guard), head);
      });
    });
  }
  const CommandLine line = read_command_line(argv[0], arguments);
  if (line.sub_command != nullptr) {
    return run_sub_command(line);
  }
  const FrontEnd& front_end = *line.front_end;
  const Flags flags = parse_flags(front_end, line.arguments);
  if (flags.wants_version) {
    return answered(print("acclaunch " ACC_VERSION "\n"));
  }
  if (flags.wants_help) {
    return answered(print(line.names_front_end ? help_text(front_end) : first_help_page()));
  }
  prepare_log(flags);
  return supervision::run_guarded(argc, argv, [&](supervision::Guard guard) {
    return launch_to_the_end(
        [&](std::string& head) { return launch(front_end, flags, std::move(guard), head); });
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write over the file size limit (ulimit -f) returns EFBIG
  std::signal(SIGCHLD, SIG_DFL);  // if it is inherited as ignored, the kernel drops exit statuses
  try {
    return run(argc, argv);
  } catch (...) {
    return say_why_not(std::current_exception());
  }
}
