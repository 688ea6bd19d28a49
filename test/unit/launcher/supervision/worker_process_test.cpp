// SPDX-License-Identifier: Apache-2.0
#include "supervision/worker_process.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>

namespace asio = boost::asio;
using namespace acc::launcher;
using acc::UniqueFd;
using Kind = supervision::ProcessEnd::Kind;

namespace {

supervision::WorkerSpec program(std::vector<std::string> command) {
  supervision::WorkerSpec spec;
  spec.command = std::move(command);
  spec.environment = {{"PATH", "/usr/bin:/bin"}, {"NAME", "va lue=1"}};
  return spec;
}

supervision::WorkerSpec shell(const std::string& script) {
  return program({"/bin/sh", "-c", script});
}

struct Ran {
  supervision::ProcessEnd end;
  std::string out;
  std::int64_t peak_memory = 0;
};

/// Runs one worker until it ends. Its output must fit into a pipe.
Ran run(const supervision::WorkerSpec& spec,
        const supervision::WorkerSurroundings& surroundings = {}) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd read(pipe[0]);
  UniqueFd write(pipe[1]);
  asio::io_context io(1);
  supervision::WorkerProcess worker(io.get_executor(), spec, write.get(), write.get(),
                                    surroundings);
  write.reset();
  Ran ran;
  asio::co_spawn(io, worker.wait(),
                 [&](const std::exception_ptr& error, supervision::ProcessEnd end) {
                   REQUIRE_FALSE(error);
                   ran.end = end;
                 });
  io.run();
  ran.peak_memory = worker.peak_memory();
  std::array<char, 65536> text{};
  ran.out.assign(text.data(), static_cast<std::size_t>(
                                  std::max<ssize_t>(0, ::read(read.get(), text.data(), 65536))));
  return ran;
}

}  // namespace

TEST_CASE("worker: all 256 exit codes are reported") {
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    CHECK(run(shell("exit " + std::to_string(code))).end ==
          supervision::ProcessEnd{Kind::exited, code});
  }
}

TEST_CASE("worker: each fatal signal is reported as a signal") {
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE,
                           SIGKILL, SIGSEGV, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM}) {
    CAPTURE(signal);
    const supervision::ProcessEnd end =
        run(shell("kill -" + std::to_string(signal) + " $$; exit 1")).end;
    CHECK(end.kind == Kind::killed);
    CHECK(end.value == signal);
  }
}

TEST_CASE("worker: programs that cannot be executed") {
  supervision::WorkerSpec spec;
  const std::pair<std::vector<std::string>, int> cases[] = {
      {{"/nonexistent/program"}, 127}, {{"/etc/passwd"}, 126}, {{"/"}, 126}};
  for (const auto& [command, status] : cases) {
    CAPTURE(command.front());
    spec.command = command;
    const Ran ran = run(spec);
    CHECK(ran.end.kind == Kind::not_executed);
    CHECK(ran.end.shell_status() == status);
  }
  spec.command = {"/bin/true"};
  spec.working_directory = "/nonexistent";
  CHECK(run(spec).end.kind == Kind::not_executed);
}

TEST_CASE("worker: arguments, environment and working directory are those of the spec") {
  supervision::WorkerSpec spec = shell(
      R"(printf '%s|' "$0" "$@"; env | grep -v -e ^PWD -e ^_ -e ^SHLVL -e ^OLDPWD | sort; pwd)");
  spec.command.insert(spec.command.end(), {"zero", "", "two words"});
  spec.working_directory = "/usr";
  CHECK(run(spec).out == "zero||two words|NAME=va lue=1\nPATH=/usr/bin:/bin\n/usr\n");
}

TEST_CASE("worker: has default signals, no inherited descriptors, and its own process group") {
  const UniqueFd low(::open("/dev/null", O_RDONLY));  // without close-on-exec, as Asio's sockets
  const UniqueFd high(::fcntl(low.get(), F_DUPFD, 200));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const auto pipe_before = ::signal(SIGPIPE, SIG_IGN);
  const std::string open_files = run(program({"/bin/ls", "/proc/self/fd"})).out;
  const std::string status =
      run(program({"/bin/grep", "-e", "SigBlk", "-e", "SigIgn", "/proc/self/status"})).out;
  const std::string stat = run(program({"/bin/cat", "/proc/self/stat"})).out;
  const std::string input = run(program({"/bin/readlink", "/proc/self/fd/0"})).out;
  ::signal(SIGPIPE, pipe_before);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);

  CHECK(open_files == "0\n1\n2\n3\n");  // 3 is the directory that ls reads
  CHECK(status == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  int pid = 0;
  int group = 0;
  CHECK(std::sscanf(stat.c_str(), "%d %*s %*c %*d %d", &pid, &group) == 2);
  CHECK(pid == group);
  CHECK(input == "/dev/null\n");
}

TEST_CASE("worker: a tracer that does not reap it delays its end, but not the event loop") {
  asio::io_context io(1);
  supervision::WorkerProcess worker(io.get_executor(), program({"/bin/sleep", "1000"}),
                                    STDOUT_FILENO, STDERR_FILENO);
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd read(pipe[0]);
  const UniqueFd write(pipe[1]);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    const char attached = ::ptrace(PTRACE_SEIZE, worker.pid(), nullptr, nullptr) == 0 ? 'y' : 'n';
    (void)!::write(write.get(), &attached, 1);
    for (;;) {
      ::pause();
    }
  }
  char attached = 0;
  CHECK(::read(read.get(), &attached, 1) == 1);
  worker.signal(SIGKILL);
  std::optional<supervision::ProcessEnd> end;
  asio::co_spawn(io, worker.wait(),
                 [&](const std::exception_ptr&, supervision::ProcessEnd how) { end = how; });
  if (attached == 'y') {
    while (io.run_for(std::chrono::milliseconds(100)) == 0) {
    }
    CHECK_FALSE(end);
  }
  ::kill(tracer, SIGKILL);
  ::waitpid(tracer, nullptr, 0);
  io.run();
  CHECK(end == supervision::ProcessEnd{Kind::killed, SIGKILL});
}

TEST_CASE("worker: the peak memory includes that of its children") {
  // The kernel also counts the memory of the worker before exec, which is a copy of this process's:
  // hundreds of megabytes with the address sanitizer.
  rusage own{};
  REQUIRE(::getrusage(RUSAGE_SELF, &own) == 0);
  const std::int64_t held = std::int64_t{own.ru_maxrss} * 1024 + 100'000'000;
  const std::string bytes = std::to_string(held);
  const std::int64_t none = run(program({"/bin/true"})).peak_memory;
  const std::int64_t much =
      run(shell("head -c " + bytes + " /dev/zero | tail -c " + bytes + " > /dev/null")).peak_memory;
  CHECK(none > 0);
  CHECK(none < held);
  CHECK(much >= held);
}

TEST_CASE("worker: has the given limit on descriptors, or else the launcher's") {
  rlimit own{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &own) == 0);
  supervision::WorkerSurroundings given;
  given.descriptors = rlimit{own.rlim_cur / 2, own.rlim_max};
  CHECK(run(shell("ulimit -Sn")).out == std::to_string(own.rlim_cur) + "\n");
  CHECK(run(shell("ulimit -Sn"), given).out == std::to_string(own.rlim_cur / 2) + "\n");
}

TEST_CASE("worker: runs on the cores it is bound to") {
  cpu_set_t usable;
  REQUIRE(::sched_getaffinity(0, sizeof usable, &usable) == 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &usable)) {
    --last;
  }
  supervision::WorkerSpec spec = program({"/bin/grep", "Cpus_allowed_list", "/proc/self/status"});
  spec.cores = {last};
  spec.numa_node = 0;
  CHECK(run(spec).out == "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
}
