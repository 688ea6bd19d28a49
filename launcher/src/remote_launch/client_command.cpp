// SPDX-License-Identifier: Apache-2.0
// Command lines of the clients that start acclaunch on other machines. Environment and arguments
// never appear on these command lines, because every user of a machine can read them; they travel
// in the start message on standard input.
#include "remote_launch/client_command.hpp"

#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/settings/settings_table.hpp"
#include "host/own_variables.hpp"
#include "remote_launch/start_message.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace acc::launcher::remote_launch {
namespace {

/// Quotes text for the login shell of another machine, which may be sh, csh or fish. Single quotes
/// mean the same to all of them, for text without the characters that csh and fish treat specially.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return result + "'";
}

/// Returns the command for the other machine: runs acclaunch at the same path as here if it exists
/// there, else from PATH.
std::string remote_command(const std::string& executable, const std::string& arguments) {
  return "/bin/sh -c 'test -x \"$0\" && exec \"$0\" remote \"$@\"; exec acclaunch remote \"$@\"' " +
         quoted(executable) + (arguments.empty() ? "" : " " + arguments);
}

StartMessage message_for(const RemoteLaunchPlan& plan,
                         std::vector<settings::Environment> machines) {
  return {.working_directory = plan.working_directory,
          .arguments = plan.arguments,
          .environment = plan.environment,
          .machines = std::move(machines)};
}

std::string name_of(const RemoteLaunchPlan& plan, std::size_t rank) {
  return "machine " + std::to_string(rank) + " (" + plan.machines[rank].name + ")";
}

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

/// Returns ssh with its options. ssh uses the first value of an option, so the user's options come
/// first. The keepalive options detect a dead machine after about 15 s, and EscapeChar=none keeps
/// `~` in the control messages.
std::vector<std::string> ssh_options(const RemoteLaunchPlan& plan) {
  std::vector<std::string> words = {"ssh"};
  append(words, plan.client_options);
  append(words, {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o",
                 "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR",
                 "-o", "ControlMaster=no", "-o", "EscapeChar=none"});
  if (plan.ssh_port != 0) {
    append(words, {"-p", std::to_string(plan.ssh_port)});
  }
  return words;
}

std::vector<std::string> ssh_words(const RemoteLaunchPlan& plan, const std::string& host,
                                   const std::string& log_file) {
  std::vector<std::string> words = ssh_options(plan);
  append(words, {"-E", log_file, "--", host, remote_command(plan.executable, "")});
  return words;
}

ClientCommand ssh_command(const RemoteLaunchPlan& plan, std::size_t rank,
                          const std::string& folder) {
  settings::Environment own = plan.machines[rank].variables;
  own[std::string(host::variables.control.name)] = "stdin";
  const std::string log_file = folder + "/ssh." + std::to_string(rank);
  return {.name = name_of(plan, rank),
          .words = ssh_words(plan, plan.machines[rank].name, log_file),
          .first_input = encode(message_for(plan, {std::move(own)})),
          .log_file = log_file};
}

/// Returns the pdsh command. pdsh runs one ssh per machine (-R exec), each with the message file as
/// its standard input; it replaces %h by the host name, %n by the position in the list and %u by
/// the user. The fan-out (-f) is the number of machines, since all of them have to run at the same
/// time.
ClientCommand pdsh_command(const RemoteLaunchPlan& plan, const std::string& folder) {
  std::string hosts;
  std::vector<settings::Environment> machines;
  for (const RemoteMachine& machine : plan.machines) {
    hosts += (hosts.empty() ? "" : ",") + machine.name;
    machines.push_back(machine.variables);
  }
  // PDSH_SSH_ARGS_APPEND has the user's options for pdsh's own ssh. They come first.
  RemoteLaunchPlan with_users = plan;
  with_users.client_options.clear();
  const std::string of_pdsh = host::value_of(plan.environment, host::variables.pdsh_options);
  for (const std::string_view word : split(of_pdsh, ' ')) {
    if (!word.empty()) {
      with_users.client_options.emplace_back(word);
    }
  }
  append(with_users.client_options, plan.client_options);
  const std::string input_file = folder + "/start";
  std::vector<std::string> words = {"pdsh", "-S", "-R", "exec"};
  append(words, {"-f", std::to_string(plan.machines.size()), "-w", hosts});
  append(words, {"sh", "-c", "exec \"$@\" < \"$0\"", input_file});
  append(words, ssh_options(with_users));
  append(words, {"-l", "%u", "--", "%h", remote_command(plan.executable, "%n")});
  return {.name = "the machines",
          .words = std::move(words),
          .first_input = encode(message_for(plan, std::move(machines))),
          .is_controlled = false,
          .input_file = input_file};
}

/// Returns the srun command: one task per machine, which may use all CPUs that the job has there.
/// srun copies its standard input to all tasks, so control messages reach every launcher. --overlap
/// lets the step use resources that the job's script occupies; --kill-on-bad-exit=0 and --wait=0
/// leave the handling of failures to acclaunch.
ClientCommand srun_command(const RemoteLaunchPlan& plan) {
  const std::string count = std::to_string(plan.machines.size());
  ClientCommand command{.name = "the machines", .words = {"srun"}, .environment = plan.environment};
  command.environment[std::string(host::variables.control.name)] = "stdin";
  std::vector<std::string>& words = command.words;
  append(words, plan.client_options);
  append(words, {"--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1", "--overlap",
                 "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"});
  std::string hosts;
  for (const RemoteMachine& machine : plan.machines) {
    hosts += (hosts.empty() || machine.name.empty() ? "" : ",") + machine.name;
  }
  if (!hosts.empty()) {
    words.push_back("--nodelist=" + hosts);
  }
  words.push_back(plan.executable);
  append(words, plan.arguments);
  return command;
}

}  // namespace

std::vector<ClientCommand> client_commands(const RemoteLaunchPlan& plan,
                                           const std::string& folder) {
  if (plan.means == RemoteLaunchPlan::Means::pdsh) {
    return {pdsh_command(plan, folder)};
  }
  if (plan.means == RemoteLaunchPlan::Means::srun) {
    return {srun_command(plan)};
  }
  std::vector<ClientCommand> commands;
  for (std::size_t rank = 0; rank < plan.machines.size(); ++rank) {
    commands.push_back(ssh_command(plan, rank, folder));
  }
  return commands;
}

namespace {

/// Variables that are not passed on: those of a host, a login session, a terminal or a desktop, and
/// those in which a job manager identifies this process. A trailing * matches any rest.
constexpr std::string_view kOwn =
    "HOME USER LOGNAME SHELL PWD OLDPWD SHLVL HOSTNAME HOST HOSTTYPE MACHTYPE MAIL TERM TERM_* "
    "TERMINFO COLORTERM COLUMNS LINES WINDOWID DISPLAY TTY XAUTHORITY WAYLAND_* SSH_* XDG_* "
    "DBUS_* GPG_* KRB5CCNAME TMPDIR TMUX* STY LS_COLORS LS_OPTIONS LESS* PS1 PROMPT* HIST* "
    "BASH_FUNC_* _ SUDO_* SLURM* INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET OMPI_COMM_* PMI_* "
    "PMIX_* FLUX_* LOCAL_RANK";
constexpr std::array kOwnElsewhere = {std::string_view(kCudaVisibleVariable),
                                      std::string_view(settings::kJobSecretVariable),
                                      host::variables.control.name};

bool is_own(std::string_view name) {
  const auto names_it = [name](std::string_view pattern) {
    return settings::matches(name, pattern);
  };
  return std::ranges::any_of(split(kOwn, ' '), names_it) ||
         std::ranges::any_of(kOwnElsewhere, names_it);
}

}  // namespace

settings::Environment environment_for_other_machines(const settings::Environment& own,
                                                     RemoteLaunchPlan::Means means) {
  settings::Environment carried;
  for (const auto& [name, value] : own) {
    if (means != RemoteLaunchPlan::Means::srun && !is_own(name)) {
      carried.emplace(name, value);
    }
  }
  return carried;
}

}  // namespace acc::launcher::remote_launch
