// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace acc::test {
namespace {

using Clock = std::chrono::steady_clock;

/// This process's environment; `variables` override variables of the same name.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : variables) {
    result.push_back(name + "=" + value);
  }
  return result;
}

/// The null-terminated array that posix_spawn needs. Valid while `strings` is unchanged.
std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& string : strings) {
    result.push_back(string.data());
  }
  result.push_back(nullptr);
  return result;
}

UniqueFd pidfd_of(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(static_cast<std::uint16_t>(port));
  return address;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(0, left.count()));
}

}  // namespace

Program::Program(std::vector<std::string> command,
                 const std::map<std::string, std::string>& variables) {
  std::vector<std::string> environment = environment_with(variables);
  std::array<UniqueFd, 2> write_ends;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (int i = 0; i < 2; ++i) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("pipe2 failed");
    }
    // The read end does not block, so that has_ended() can read all available output of both pipes.
    streams_[i].pipe.reset(ends[0]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    write_ends[static_cast<std::size_t>(i)].reset(ends[1]);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], i + 1);
  }
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  const int error = ::posix_spawn(&pid_, command.front().c_str(), &actions, nullptr,
                                  pointers(command).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw std::runtime_error("cannot start " + command.front() + ": " + std::strerror(error));
  }
  end_ = pidfd_of(pid_);
}

Program::~Program() {
  if (!reaped_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void Program::signal(int signal) const {
  ::kill(pid_, signal);
}

void Program::Stream::read_available() {
  std::array<char, 65536> chunk{};
  ssize_t count = 0;
  while (pipe && (count = ::read(pipe.get(), chunk.data(), chunk.size())) > 0) {
    text.append(chunk.data(), static_cast<std::size_t>(count));
  }
  if (count == 0) {
    pipe.reset();
  }
}

void Program::wait_for_event(Clock::time_point deadline, std::string_view what) {
  std::array<pollfd, 3> events{{{streams_[0].pipe.get(), POLLIN, 0},
                                {streams_[1].pipe.get(), POLLIN, 0},
                                {end_.get(), POLLIN, 0}}};
  const int ready = ::poll(events.data(), events.size(), milliseconds_until(deadline));
  if (ready == 0) {
    throw failure(std::string(what) + " until the deadline");
  }
}

int Program::count(std::string_view text) const {
  int found = 0;
  for (const Stream& stream : streams_) {
    std::string_view lines = stream.text;
    if (stream.pipe) {
      lines = lines.substr(0, lines.rfind('\n') + 1);  // npos + 1 is 0
    }
    for (std::size_t at = 0; (at = lines.find(text, at)) != std::string_view::npos; ++at) {
      ++found;
    }
  }
  return found;
}

void Program::wait_for_text(std::string_view text, int times) {
  const auto deadline = Clock::now() + kDeadline;
  for (;;) {
    const bool ended = has_ended();
    if (count(text) >= times) {
      return;
    }
    if (ended) {
      throw failure("'" + std::string(text) + "', but the program has ended");
    }
    wait_for_event(deadline, "'" + std::string(text) + "'");
  }
}

bool Program::has_ended() {
  // Checks the end before it reads: output that was written before the end is then never missed.
  pollfd end{end_.get(), POLLIN, 0};
  const bool ended = ::poll(&end, 1, 0) == 1;
  streams_[0].read_available();
  streams_[1].read_available();
  return ended;
}

std::runtime_error Program::failure(const std::string& what) const {
  return std::runtime_error("waited for " + what + "; stdout:\n" + out() + "\nstderr:\n" + err());
}

int Program::wait() {
  const auto deadline = Clock::now() + kDeadline;
  while (!has_ended()) {
    wait_for_event(deadline, "the end of the program");
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  reaped_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Watched::Watched(std::string_view text, std::string_view mark) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string_view::npos;) {
    at += mark.size();
    add(std::atoi(std::string(text.substr(at, 20)).c_str()));
  }
}

void Watched::add(pid_t pid) {
  pids_.push_back(pid);
  ends_.push_back(pidfd_of(pid));
}

bool Watched::all_end() const {
  const auto deadline = Clock::now() + kDeadline;
  for (const UniqueFd& end : ends_) {
    pollfd event{end.get(), POLLIN, 0};
    if (end && ::poll(&event, 1, milliseconds_until(deadline)) != 1) {
      return false;
    }
  }
  return true;
}

ReservedPort::ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  // SO_REUSEADDR lets a server that sets it too bind the port while this socket does not listen.
  // The kernel assigns the port to no other process during this time.
  const int on = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error(std::string("cannot reserve a port: ") + std::strerror(errno));
  }
  port_ = ::ntohs(address.sin_port);
}

bool ReservedPort::has_listener() const {
  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port_);
  return ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

void ReservedPort::listen() const {
  if (::listen(socket_.get(), 8) != 0) {
    throw std::runtime_error(std::string("cannot listen: ") + std::strerror(errno));
  }
}

}  // namespace acc::test
