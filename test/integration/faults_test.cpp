// SPDX-License-Identifier: Apache-2.0
// Signals to every process of a job at every stage: how the job ends, and whether processes are
// left.
#include "support/acclaunch.hpp"
#include "support/gate.hpp"
#include "support/left_behind.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

using namespace acc::test;

namespace {

enum class Who {
  acclaunch,   ///< the process that the user started
  keeper,      ///< child of acclaunch
  supervisor,  ///< the keeper's child, the workers' parent
  worker,
  another,  ///< another worker
  workers,  ///< all workers
  child,    ///< child of a worker
  session,  ///< child of a worker that called setsid()
};

enum class When {
  reading,   ///< the launcher reads its config file; there are no workers yet
  starting,  ///< the first of nine workers is running
  running,
  ending,   ///< the workers got SIGTERM and are ending slowly
  pausing,  ///< the pause before the second restart
};

/// A status of 0 means that the job continues and succeeds.
struct Fault {
  Who who = Who::acclaunch;
  int signal = 0;
  int status = 0;
};

constexpr const char* kWho[] = {"acclaunch", "keeper",  "supervisor", "worker",
                                "another",   "workers", "child",      "session"};
constexpr const char* kWhen[] = {"reading", "starting", "running", "ending", "pausing"};

/// Two workers with one child each, and with a process in its own session; they wait at the gate.
constexpr const char* kRunning = R"(
  setsid sh -c 'echo "session=$$ end"; exec sleep 1000' &
  sh -c 'echo "child=$$ end"; exec sleep 1000' &
  echo "worker=$$ end"
  read -r line < $GATE)";
constexpr int kWorkers = 2;

constexpr const char* kEnding = R"(
  trap 'echo is ending' TERM
  echo "worker=$$ end"
  while :; do sleep 1000 & wait; done)";

constexpr const char* kStarting = R"(
  if [ $RANK = 0 ]; then
    supervisor=$PPID
    read -r _ _ _ keeper _ < /proc/$supervisor/stat
    read -r _ _ _ acclaunch _ < /proc/$keeper/stat
    worker=$$
    eval target=\$$TARGET
    { kill -$SIGNAL $target; [ $SIGNAL = 19 ] && kill -18 $target; } &
    wait
  fi
  [ $STATUS = 0 ] || exec sleep 1000)";

std::vector<std::string> command_of(When when, const JobPlace& place, const Gate& gate) {
  const auto with = [&](int workers, std::vector<std::string> flags, const char* script) {
    flags.insert(flags.end(), {"--cpu", "--num_processes", std::to_string(workers),
                               "--main_process_port", place.port()});
    return acclaunch(flags, script);
  };
  switch (when) {
    case When::reading: return with(kWorkers, {"--config_file", gate.path()}, "true");
    case When::starting: return with(9, {}, kStarting);
    case When::running: return with(kWorkers, {}, kRunning);
    case When::ending: return with(kWorkers, {"--shutdown_timeout", "1000"}, kEnding);
    case When::pausing: return with(kWorkers, {"--max_restarts", "2"}, "exit 3");
  }
  return {};
}

/// A job with its own temporary folder that has reached the stage `when`.
class Job {
 public:
  explicit Job(When when, const Fault& fault = {})
      : program_(command_of(when, place_, gate_), {{"TMPDIR", place_.folder()},
                                                   {"GATE", gate_.path()},
                                                   {"SIGNAL", std::to_string(fault.signal)},
                                                   {"STATUS", std::to_string(fault.status)},
                                                   {"TARGET", kWho[static_cast<int>(fault.who)]}}) {
    switch (when) {
      case When::reading: gate_.await_visitor(); break;
      case When::starting: break;
      case When::running: program_.wait_for_text(" end", 3 * kWorkers); break;
      case When::ending:
        program_.wait_for_text(" end", kWorkers);
        program_.signal(SIGTERM);
        program_.wait_for_text("is ending", kWorkers);
        break;
      case When::pausing: program_.wait_for_text("attempt 1 failed"); break;
    }
  }

  [[nodiscard]] Program& program() { return program_; }
  void let_workers_end() { gate_.open(kWorkers); }

  [[nodiscard]] Watched find(Who who) const {
    const auto one = [&](const char* mark, std::size_t index) {
      return Watched(program_.out(), mark)[index];
    };
    Watched found;
    switch (who) {
      case Who::acclaunch: found.add(program_.pid()); break;
      case Who::keeper: found.add(keeper_of(program_)); break;
      case Who::supervisor: found.add(supervisor_of(program_)); break;
      case Who::worker: found.add(one("worker=", 0)); break;
      case Who::another: found.add(one("worker=", 1)); break;
      case Who::workers: found = Watched(program_.out(), "worker="); break;
      case Who::child: found.add(one("child=", 0)); break;
      case Who::session: found.add(one("session=", 0)); break;
    }
    return found;
  }

  /// Checks the exit status and that nothing is left of the job, after waiting for the processes
  /// that clean up when acclaunch has ended. Prints the result as one row of a table.
  void check_end(const std::string& row, int status, bool acclaunch_died) {
    const int found = program_.wait();
    const std::string left = acclaunch_died ? place_.left_at_last(program_) : place_.left(program_);
    std::printf("%-34s status %3d   left: %s\n", row.c_str(), found, left.c_str());
    CHECK(found == status);
    CHECK(left == "nothing");
  }

 private:
  JobPlace place_;
  Gate gate_;
  Program program_;
};

void send(int signal, const Watched& processes) {
  for (std::size_t i = 0; i < processes.size(); ++i) {
    ::kill(processes[i], signal);
  }
}

void await_stop(const Watched& processes) {
  for (std::size_t i = 0; i < processes.size(); ++i) {
    acc::test::await_stop(processes[i]);
  }
}

/// Sends the fault's signal. Continues processes that it stopped, except children of workers.
void hit(const Fault& fault, const Job& job) {
  const Watched processes = job.find(fault.who);
  send(fault.signal, processes);
  if (fault.signal == SIGSTOP || (fault.signal == SIGTSTP && fault.status == 0)) {
    await_stop(processes);
    if (fault.who < Who::child) {
      send(SIGCONT, processes);
    }
  }
}

using Signals = std::vector<int>;

const Signals kStops = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
const Signals kDeaths = {SIGKILL, SIGSEGV, SIGABRT};
const Signals kStopsAndDeaths = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGKILL, SIGSEGV, SIGABRT};

constexpr int kOfSignal = -1;  ///< stands for the status 128 + signal

/// A set of faults: each of the signals for each of the processes.
struct Faults {
  std::vector<Who> who;
  Signals signals;
  int status;
};

void check(When when, const Fault& fault) {
  const std::string row = std::string(kWho[static_cast<int>(fault.who)]) + " SIG" +
                          ::sigabbrev_np(fault.signal) + " " + kWhen[static_cast<int>(when)];
  CAPTURE(row);
  Job job(when, fault);
  if (when != When::starting) {
    hit(fault, job);
  }
  if (fault.status == 0 && when == When::running) {
    job.let_workers_end();
  }
  job.check_end(row, fault.status,
                fault.who == Who::acclaunch && fault.status == 128 + fault.signal);
}

void check(When when, const std::vector<Faults>& rows) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  for (const Faults& row : rows) {
    for (const Who who : row.who) {
      for (const int signal : row.signals) {
        check(when, Fault{who, signal, row.status == kOfSignal ? 128 + signal : row.status});
      }
    }
  }
}

/// A launch on other machines by a stand-in for ssh that runs everything here. Its clients print
/// their process IDs.
struct RemoteJob {
  RemoteJob(const std::string& ssh, const std::string& hosts, const std::string& script)
      : program(command(ssh, hosts, script), {{"TMPDIR", place.folder()},
                                              {"GATE", gate.path()},
                                              {"PATH", bin + ":" + std::getenv("PATH")}}) {}

  std::vector<std::string> command(const std::string& ssh, const std::string& hosts,
                                   const std::string& script) const {
    std::ofstream(bin + "/ssh") << "#!/bin/sh\nfor command; do :; done\n" << ssh;
    std::filesystem::permissions(bin + "/ssh", std::filesystem::perms::all);
    std::ofstream(bin + "/hosts") << hosts;
    return acclaunch(
        {"--cpu", "--hostfile", bin + "/hosts", "--main_process_port", place.port(), "--no_python"},
        script);
  }

  /// Lets the clients end while the launcher is stopped, so that it hears of all ends at once.
  void end_clients_unseen(std::size_t count, std::chrono::milliseconds pause = {}) {
    const Watched clients(program.out(), "client=");
    REQUIRE(clients.size() == count);
    const pid_t supervisor = supervisor_of(program);
    stop(supervisor);
    gate.open(static_cast<int>(count));
    CHECK(clients.all_end());
    std::this_thread::sleep_for(pause);
    ::kill(supervisor, SIGCONT);
  }

  const TemporaryFolder folder;
  const std::string bin = folder.path().string();
  const JobPlace place;
  Gate gate;
  Program program;
};

}  // namespace

TEST_CASE("faults: while the launcher reads its config file") {
  check(When::reading,
        {{{Who::acclaunch, Who::keeper, Who::supervisor}, kStopsAndDeaths, kOfSignal}});
}

TEST_CASE("faults: while the workers are started") {
  check(When::starting,
        {{{Who::acclaunch, Who::supervisor, Who::worker}, kStops, kOfSignal},
         {{Who::keeper}, {SIGTERM}, kOfSignal},
         {{Who::acclaunch, Who::keeper, Who::supervisor, Who::worker}, kDeaths, kOfSignal},
         {{Who::acclaunch, Who::supervisor}, {SIGPIPE, SIGSTOP}, 0},
         {{Who::worker}, {SIGPIPE, SIGUSR1}, kOfSignal},
         {{Who::worker}, {SIGSTOP}, 0}});
}

TEST_CASE("faults: while the workers run") {
  const std::vector<Who> launcher = {Who::acclaunch, Who::keeper, Who::supervisor};
  const std::vector<Who> workers = {Who::worker, Who::workers};
  check(When::running,
        {{launcher, kStopsAndDeaths, kOfSignal},
         {launcher, {SIGUSR1}, kOfSignal},
         {launcher, {SIGPIPE, SIGSTOP}, 0},
         {{Who::acclaunch}, {SIGALRM}, kOfSignal},
         {{Who::acclaunch}, {SIGCHLD, SIGTTIN, SIGWINCH, SIGTSTP, SIGUSR2}, 0},
         {workers, kStopsAndDeaths, kOfSignal},
         {workers, {SIGPIPE, SIGUSR1}, kOfSignal},
         {workers, {SIGSTOP}, 0},
         {{Who::child, Who::session}, {SIGTERM, SIGHUP, SIGKILL, SIGSEGV, SIGSTOP}, 0}});
}

TEST_CASE("faults: while the workers end") {
  check(When::ending, {{{Who::acclaunch, Who::keeper, Who::supervisor}, kStops, 128 + SIGTERM},
                       {{Who::acclaunch, Who::keeper, Who::supervisor}, kDeaths, kOfSignal},
                       {{Who::acclaunch, Who::workers}, {SIGUSR1}, 128 + SIGTERM},
                       {{Who::workers}, {SIGKILL, SIGSEGV}, 128 + SIGTERM}});
}

TEST_CASE("faults: in the pause before a restart") {
  check(When::pausing,
        {{{Who::acclaunch}, kStops, kOfSignal},
         {{Who::keeper, Who::supervisor}, {SIGTERM}, kOfSignal},
         {{Who::acclaunch, Who::keeper, Who::supervisor}, {SIGKILL, SIGSEGV}, kOfSignal},
         {{Who::acclaunch}, {SIGSTOP, SIGUSR1}, 3}});
}

TEST_CASE("faults: any two of acclaunch, keeper and supervisor killed at the same moment") {
  const std::vector<Who> kPairs[] = {{Who::acclaunch, Who::keeper},
                                     {Who::acclaunch, Who::supervisor},
                                     {Who::keeper, Who::supervisor}};
  for (int round = 0; round < 10; ++round) {
    for (const std::vector<Who>& pair : kPairs) {
      CAPTURE(kWho[static_cast<int>(pair[0])]);
      CAPTURE(kWho[static_cast<int>(pair[1])]);
      Job job(When::running);
      const Watched first = job.find(pair[0]);
      const Watched second = job.find(pair[1]);
      for (const int signal : {SIGSTOP, SIGKILL}) {  // stops both before either is killed
        send(signal, first);
        send(signal, second);
      }
      job.check_end(std::string(kWho[static_cast<int>(pair[0])]) + " and " +
                        kWho[static_cast<int>(pair[1])] + " SIGKILL",
                    128 + SIGKILL, pair[0] == Who::acclaunch);
    }
  }
}

TEST_CASE("faults: a message names the keeper or supervisor that was killed") {
  for (const Who who : {Who::keeper, Who::supervisor}) {
    Job job(When::running);
    const Watched killed = job.find(who);
    send(SIGKILL, killed);
    job.check_end(std::string(kWho[static_cast<int>(who)]) + " SIGKILL, alone", 128 + SIGKILL,
                  false);
    CHECK(contains(job.program().err(),
                   std::string("acclaunch: its ") + kWho[static_cast<int>(who)] + " process (pid " +
                       std::to_string(killed[0]) +
                       ") was killed by SIGKILL (signal 9); all workers were killed\n"));
  }
}

TEST_CASE("faults: a stopped process, continued or not, does not keep the job from ending") {
  const Fault kEnds[] = {
      {Who::acclaunch, SIGTERM}, {Who::acclaunch, SIGKILL}, {Who::another, SIGKILL}};
  for (const Who who : {Who::acclaunch, Who::keeper, Who::supervisor, Who::worker, Who::workers}) {
    for (const Fault& end : kEnds) {
      // Only the user continues acclaunch; a worker's failure continues nothing.
      const bool must_go_on =
          who == Who::acclaunch || (end.who == Who::another && who < Who::worker);
      for (const bool goes_on : {true, false}) {
        if (must_go_on && !goes_on) {
          continue;
        }
        CAPTURE(kWho[static_cast<int>(who)]);
        CAPTURE(kWho[static_cast<int>(end.who)]);
        CAPTURE(end.signal);
        CAPTURE(goes_on);
        Job job(When::running);
        const Watched stopped = job.find(who);
        send(SIGSTOP, stopped);
        await_stop(stopped);
        send(end.signal, job.find(end.who));
        if (goes_on) {
          send(SIGCONT, stopped);
        }
        const std::string row = std::string(kWho[static_cast<int>(who)]) + " stopped" +
                                (goes_on ? ", goes on; " : "; ") + kWho[static_cast<int>(end.who)] +
                                " SIG" + ::sigabbrev_np(end.signal);
        job.check_end(row, 128 + end.signal, end.who == Who::acclaunch && end.signal == SIGKILL);
      }
    }
  }
}

TEST_CASE(
    "faults: a launcher of other machines is not kept by a heartbeat that is due at its end") {
  RemoteJob job("echo \"client=$$ end\"; exec sh -c \"$command\"\n", "127.0.0.1 slots=1\n",
                "echo worker-up; read -r line < $GATE");
  job.program.wait_for_text("worker-up");
  job.end_clients_unseen(1, std::chrono::milliseconds(1100));  // a heartbeat is due each second
  CHECK(job.program.wait() == 0);
  CHECK(job.place.left(job.program) == "nothing");
}

TEST_CASE("faults: each of several machines that cannot be started is named") {
  RemoteJob job("echo \"client=$$ end\"; read -r line < $GATE; exit 127\n",
                "one slots=1\ntwo slots=1\n", "true");
  job.program.wait_for_text("client=", 2);
  job.end_clients_unseen(2);
  CHECK(job.program.wait() == 2);
  CHECK(contains(job.program.err(), "machine 0 (one) cannot be started: no executable acclaunch"));
  CHECK(contains(job.program.err(), "machine 1 (two) cannot be started: no executable acclaunch"));
  CHECK(job.place.left(job.program) == "nothing");
}

TEST_CASE("faults: Ctrl-Z stops the workers, fg continues them") {
  Job job(When::running);
  job.program().signal(SIGTSTP);
  await_stop(job.find(Who::acclaunch));
  await_stop(job.find(Who::workers));
  job.program().signal(SIGCONT);
  job.let_workers_end();
  job.check_end("acclaunch SIGTSTP, then SIGCONT", 0, false);
}

TEST_CASE("faults: processes that fork continuously end with the job") {
  const std::string script = R"(
    setsid sh -c 'trap "" TERM; while :; do setsid sh -c "sleep 1000 & sleep 0.01" & wait $!; done' &
    echo worker-up
    read -r line < $GATE
    exit 3)";
  for (const int signal : {SIGTERM, SIGKILL, 0}) {
    CAPTURE(signal);  // 0: a worker fails
    const JobPlace place;
    Gate gate;
    Program job(
        acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", place.port()}, script),
        {{"TMPDIR", place.folder()}, {"GATE", gate.path()}});
    job.wait_for_text("worker-up", 2);
    if (signal == 0) {
      gate.open(1);
    } else {
      job.signal(signal);
    }
    CHECK(job.wait() == (signal == 0 ? 3 : 128 + signal));
    CHECK((signal == SIGKILL ? place.left_at_last(job) : place.left(job)) == "nothing");
  }
}
