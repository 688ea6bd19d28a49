// SPDX-License-Identifier: Apache-2.0
// Starts the clients of a remote launch and waits for them. The events in between (answers,
// signals, failures, time limits) are in remote_job_events.cpp. The exit status of the job is that
// of the first machine that ended by itself, because all machines agree on it.
#include "remote_launch/remote_launcher.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/token.hpp"
#include "acc/base/variables.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "host/own_variables.hpp"
#include "plan/program_command.hpp"
#include "remote_launch/client_command.hpp"
#include "remote_launch/remote_job.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace acc::launcher::remote_launch {
namespace asio = boost::asio;

namespace {

/// Maximum number of connections that are set up at the same time. sshd (MaxStartups) and name
/// servers refuse more.
constexpr std::ptrdiff_t kMostAtOnce = 64;

/// Returns the path of a client. Throws Error(not_found) if it is not installed.
std::string path_of(const std::string& program, const settings::Environment& environment,
                    const std::filesystem::path& working_directory) {
  const auto path = plan::find_in_path(program, environment, working_directory);
  if (!path) {
    throw Error(Errc::not_found, "cannot start machines: " + program + " is not in PATH (" +
                                     host::value_of(environment, host::variables.path) +
                                     "); install it");
  }
  return path->string();
}

/// True if the job needs a token and the user has given none. A c10d job needs one unless the user
/// waives it, because its machines connect to servers of each other.
bool needs_new_token(const LaunchPlan& plan, const settings::Environment& environment) {
  const bool is_wanted = plan.settings.boolean("secure"_key) ||
                         (plan.rendezvous.backend == RendezvousPlan::Backend::c10d &&
                          !plan.settings.boolean("insecure"_key));
  return is_wanted && settings::variable(environment, kTokenVariable).empty() &&
         settings::variable(environment, kTokenFileVariable).empty();
}

/// Returns the plan of the start with the variables that are passed on from this process, and a
/// token for the job if it needs one. Variables of the plan take precedence.
RemoteLaunchPlan with_carried(const LaunchPlan& plan, const settings::Environment& environment) {
  RemoteLaunchPlan start = *plan.start;
  if (needs_new_token(plan, environment)) {
    start.environment[kTokenVariable] = random_token();
  }
  start.environment.merge(environment_for_other_machines(environment, start.means));
  return start;
}

/// Returns the last line of a file that is not empty, without trailing spaces.
std::string last_line_of(const std::string& file) {
  std::ifstream stream(file);
  std::string last;
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) {
      line.pop_back();
    }
    last = line.empty() ? last : line;
  }
  return last;
}

}  // namespace

RemoteJob::RemoteJob(const LaunchPlan& plan, const settings::Environment& environment,
                     supervision::Guard guard)
    : plan_(plan),
      environment_(environment),
      runner_(
          std::move(guard), {.on_lost = [this](const output::Lost& lost) { on_lost(lost); }},
          {.on_signal = [this](supervision::PassedSignal signal) { on_signal(signal.number); }}),
      beat_(runner_.io()),
      patience_(runner_.io()),
      limit_(runner_.io()) {}

int RemoteJob::run() {
  for (const std::string& notice : plan_.notices) {
    say(notice);
  }
  make_log_folder();
  const RemoteLaunchPlan start = with_carried(plan_, environment_);
  for (ClientCommand& command : client_commands(start, log_folder_)) {
    if (!command.input_file.empty()) {
      write_file(command.input_file, command.first_input, Overwrite::no);
    }
    command.words.front() = path_of(command.words.front(), environment_, start.working_directory);
    clients_.emplace_back(std::move(command), static_cast<int>(clients_.size()));
  }
  supervision::require_descriptors_for_clients(clients_.size());
  runner_.leftovers().cgroup().make();
  begin_more();
  beat();
  runner_.io().run();
  runner_.leftovers().clean_up();  // includes children of clients, such as ssh's ProxyCommand
  runner_.rethrow_fault();
  if (stop_ == SIGINT && exit_status() == 128 + SIGINT) {
    supervision::die_of_interrupt();
  }
  return exit_status();
}

void RemoteJob::make_log_folder() {
  std::string folder = host::value_of(environment_, host::variables.temporary_folder, "/tmp") +
                       "/acclaunch-start.XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    throw Error(Errc::config, "cannot create the folder " + folder + ": " + std::strerror(errno) +
                                  "; choose another folder with TMPDIR");
  }
  log_folder_ = folder;
  runner_.leftovers().add_folder(log_folder_);
}

/// Starts clients until `kMostAtOnce` of them are connecting. Called again whenever one has started
/// its launcher or has ended.
void RemoteJob::begin_more() {
  auto connecting = std::ranges::count_if(
      clients_, [](const Client& c) { return c.process && !c.end && !c.heard.started; });
  for (Client& client : clients_) {
    if (connecting < kMostAtOnce && !client.process && !client.end) {
      begin(client);
      ++connecting;
    }
  }
}

supervision::WorkerSpec RemoteJob::client_spec(const Client& client, int input) const {
  supervision::WorkerSpec spec;
  spec.rank = client.rank;
  spec.local_rank = client.rank;
  spec.command = client.command.words;
  spec.environment = environment_;
  for (const auto& [name, value] : client.command.environment) {
    spec.environment[name] = value;
  }
  spec.input = input;
  return spec;
}

/// Starts a client with a pipe as its standard input, writes the start message and watches it.
void RemoteJob::begin(Client& client) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(Errc::process, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  const UniqueFd read_end(ends[0]);
  client.input = std::make_shared<ControlSender>(runner_.io().get_executor(), UniqueFd(ends[1]));
  const output::OutputMux::WorkerEnds out = runner_.output().add_worker(
      {.rank = client.rank,
       .edit = [this, &client](std::string_view line) { return hear(client, line); }});
  client.process.emplace(runner_.io().get_executor(), client_spec(client, read_end.get()),
                         out.out.get(), out.err.get(), runner_.surroundings());
  logger(Component::launcher)
      .debug("{}: started {} as process {}", client.command.name, client.command.words.front(),
             client.process->pid());
  if (client.command.input_file.empty()) {
    client.input->send(client.command.first_input);
  }
  if (client.command.is_controlled) {
    client.input->send(control::encode(control::Greeting{host_name()}));
  }
  asio::co_spawn(runner_.io(), watch(client), [this](const std::exception_ptr& error) {
    if (error) {
      runner_.fail(error);
      runner_.io().stop();
    }
  });
}

asio::awaitable<void> RemoteJob::watch(Client& client) {
  const supervision::ProcessEnd end = co_await client.process->wait();
  runner_.output().drain(client.rank);  // may contain its last answer
  client.input->close();
  judge(client, end);
  logger(Component::launcher)
      .debug("{}: its client has ended: {}", client.command.name, end.describe());
  on_end_of(client);
}

void RemoteJob::judge(Client& client, const supervision::ProcessEnd& end) {
  if (client.was_cut) {
    client.end = judge_cut(end, client.heard);
  } else if (plan_.start->means == RemoteLaunchPlan::Means::ssh) {
    client.end = judge_ssh(end, client.heard, last_line_of(client.command.log_file),
                           plan_.start->executable);
  } else {
    client.end = judge_group(end, client.command.words.front());
  }
}

/// Reports the end of a client if it is a failure that is not known yet.
void RemoteJob::on_end_of(Client& client) {
  const ClientEnd& end = *client.end;
  const bool is_news = !client.was_cut && !stop_;
  if (is_news && end.kind == ClientEnd::Kind::not_started && !is_over_) {
    if (!(failure_ && client.heard.started)) {  // otherwise it ended because it was told to
      on_start_failure(client.command.name, end.reason);
    }
  } else if (is_news && end.kind == ClientEnd::Kind::lost) {
    say("the connection to " + client.command.name + " is broken: " + end.reason);
  }
  begin_more();
  close_when_all_ended();
}

void RemoteJob::close_when_all_ended() {
  const bool all_ended =
      std::ranges::all_of(clients_, [](const Client& client) { return client.end.has_value(); });
  if (!all_ended || std::exchange(is_closed_, true)) {
    return;
  }
  beat_.cancel();
  patience_.cancel();
  limit_.cancel();
  runner_.close();
  runner_.output().drain();
  asio::co_spawn(runner_.io(), runner_.output().flushed(), asio::detached);
}

int RemoteJob::exit_status() const {
  if (failure_) {
    return *failure_;
  }
  std::vector<ClientEnd> ends;
  for (const Client& client : clients_) {
    ends.push_back(*client.end);
  }
  return job_status(ends, stop_ ? 128 + *stop_ : 1);
}

int start_machines(const LaunchPlan& plan, const settings::Environment& environment,
                   supervision::Guard guard) {
  return RemoteJob(plan, environment, std::move(guard)).run();
}

}  // namespace acc::launcher::remote_launch
