// Who is hit by which signal, and when: how the job ends, and what is left of it.
#include "support/acclaunch.hpp"
#include "support/gate.hpp"
#include "support/left_behind.hpp"
#include "support/program.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <thread>

using namespace acc::test;

namespace {

enum class Who {
  acclaunch,   ///< the process that the user started
  keeper,      ///< its child
  supervisor,  ///< the keeper's child, the workers' parent
  worker,
  workers,  ///< all of them
  child,    ///< of a worker
  session,  ///< a worker's child that went into a session of its own
};

enum class When {
  reading,   ///< the launcher, its config file; there is no worker yet
  starting,  ///< the first of nine workers runs
  running,
  ending,   ///< the workers were told to end by SIGTERM, and take their time
  pausing,  ///< before the second restart
};

/// A status of 0: the job goes on, and then ends well.
struct Fault {
  Who who;
  int signal;
  int status;
};

constexpr const char* kWho[] = {"acclaunch", "keeper", "supervisor", "worker",
                                "workers",   "child",  "session"};
constexpr const char* kWhen[] = {"reading", "starting", "running", "ending", "pausing"};

/// Two workers with a child each, and one in a session of its own; they wait at the gate.
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

/// Returns when it is `when`.
void reach(When when, Program& job, Gate& gate) {
  switch (when) {
    case When::reading: gate.await_visitor(); break;
    case When::starting: break;
    case When::running: job.wait_for_text(" end", 3 * kWorkers); break;
    case When::ending:
      job.wait_for_text(" end", kWorkers);
      job.signal(SIGTERM);
      job.wait_for_text("is ending", kWorkers);
      break;
    case When::pausing: job.wait_for_text("attempt 1 failed"); break;
  }
}

Watched targets(Who who, const Program& job) {
  Watched found;
  switch (who) {
    case Who::acclaunch: found.add(job.pid()); break;
    case Who::keeper: found.add(keeper_of(job)); break;
    case Who::supervisor: found.add(supervisor_of(job)); break;
    case Who::worker: found.add(Watched(job.out(), "worker=")[0]); break;
    case Who::workers: found = Watched(job.out(), "worker="); break;
    case Who::child: found.add(Watched(job.out(), "child=")[0]); break;
    case Who::session: found.add(Watched(job.out(), "session=")[0]); break;
  }
  return found;
}

void await_stop(pid_t pid) {
  char state = 0;
  for (std::string name; state != 'T' && state != 'Z';) {
    std::ifstream("/proc/" + std::to_string(pid) + "/stat") >> name >> name >> state;
    std::this_thread::yield();  // nobody but the parent is told
  }
}

/// A child of a worker that is stopped stays so.
void hit(const Fault& fault, const Program& job) {
  const Watched hit = targets(fault.who, job);
  for (std::size_t i = 0; i < hit.size(); ++i) {
    ::kill(hit[i], fault.signal);
  }
  const bool stops = fault.signal == SIGSTOP || (fault.signal == SIGTSTP && fault.status == 0);
  for (std::size_t i = 0; stops && i < hit.size(); ++i) {
    await_stop(hit[i]);
    if (fault.who < Who::child) {
      ::kill(hit[i], SIGCONT);
    }
  }
}

struct Ending {
  int status;
  std::string left;
};

Ending run(When when, const Fault& fault) {
  const JobPlace place;
  Gate gate;
  Program job(command_of(when, place, gate), {{"TMPDIR", place.folder()},
                                              {"GATE", gate.path()},
                                              {"SIGNAL", std::to_string(fault.signal)},
                                              {"STATUS", std::to_string(fault.status)},
                                              {"TARGET", kWho[static_cast<int>(fault.who)]}});
  reach(when, job, gate);
  if (when != When::starting) {
    hit(fault, job);
  }
  if (fault.status == 0 && when == When::running) {
    gate.open(kWorkers);
  }
  const int status = job.wait();
  const bool died = fault.who == Who::acclaunch && status == 128 + fault.signal;
  return {status, died ? place.left_at_last(job) : place.left(job)};
}

void check(When when, std::span<const Fault> faults) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  for (const Fault& fault : faults) {
    const std::string row = std::string(kWho[static_cast<int>(fault.who)]) + " SIG" +
                            ::sigabbrev_np(fault.signal) + " " + kWhen[static_cast<int>(when)];
    CAPTURE(row);
    const Ending end = run(when, fault);
    std::printf("%-28s status %3d   left: %s\n", row.c_str(), end.status, end.left.c_str());
    CHECK(end.status == fault.status);
    CHECK(end.left == "nothing");
  }
}

// The columns of the table: who, signal, exit status.
// clang-format off
constexpr Fault kWhileReading[] = {
    {Who::acclaunch, SIGTERM, 128 + SIGTERM}, {Who::acclaunch, SIGINT, 128 + SIGINT},
    {Who::acclaunch, SIGHUP, 128 + SIGHUP}, {Who::acclaunch, SIGQUIT, 128 + SIGQUIT},
    {Who::acclaunch, SIGKILL, 128 + SIGKILL}, {Who::acclaunch, SIGSEGV, 128 + SIGSEGV},
    {Who::acclaunch, SIGABRT, 128 + SIGABRT},
    {Who::keeper, SIGTERM, 128 + SIGTERM}, {Who::keeper, SIGINT, 128 + SIGINT},
    {Who::keeper, SIGHUP, 128 + SIGHUP}, {Who::keeper, SIGQUIT, 128 + SIGQUIT},
    {Who::keeper, SIGKILL, 128 + SIGKILL}, {Who::keeper, SIGSEGV, 128 + SIGSEGV},
    {Who::keeper, SIGABRT, 128 + SIGABRT},
    {Who::supervisor, SIGTERM, 128 + SIGTERM}, {Who::supervisor, SIGINT, 128 + SIGINT},
    {Who::supervisor, SIGHUP, 128 + SIGHUP}, {Who::supervisor, SIGQUIT, 128 + SIGQUIT},
    {Who::supervisor, SIGKILL, 128 + SIGKILL}, {Who::supervisor, SIGSEGV, 128 + SIGSEGV},
    {Who::supervisor, SIGABRT, 128 + SIGABRT},
};
constexpr Fault kWhileStarting[] = {
    {Who::acclaunch, SIGTERM, 128 + SIGTERM}, {Who::acclaunch, SIGINT, 128 + SIGINT},
    {Who::acclaunch, SIGHUP, 128 + SIGHUP}, {Who::acclaunch, SIGQUIT, 128 + SIGQUIT},
    {Who::acclaunch, SIGKILL, 128 + SIGKILL}, {Who::acclaunch, SIGSEGV, 128 + SIGSEGV},
    {Who::acclaunch, SIGABRT, 128 + SIGABRT},
    {Who::acclaunch, SIGPIPE, 0}, {Who::acclaunch, SIGSTOP, 0},
    {Who::keeper, SIGTERM, 128 + SIGTERM}, {Who::keeper, SIGKILL, 128 + SIGKILL},
    {Who::keeper, SIGSEGV, 128 + SIGSEGV}, {Who::keeper, SIGABRT, 128 + SIGABRT},
    {Who::supervisor, SIGTERM, 128 + SIGTERM}, {Who::supervisor, SIGINT, 128 + SIGINT},
    {Who::supervisor, SIGHUP, 128 + SIGHUP}, {Who::supervisor, SIGQUIT, 128 + SIGQUIT},
    {Who::supervisor, SIGKILL, 128 + SIGKILL}, {Who::supervisor, SIGSEGV, 128 + SIGSEGV},
    {Who::supervisor, SIGABRT, 128 + SIGABRT},
    {Who::supervisor, SIGPIPE, 0}, {Who::supervisor, SIGSTOP, 0},
    {Who::worker, SIGTERM, 128 + SIGTERM}, {Who::worker, SIGINT, 128 + SIGINT},
    {Who::worker, SIGHUP, 128 + SIGHUP}, {Who::worker, SIGQUIT, 128 + SIGQUIT},
    {Who::worker, SIGKILL, 128 + SIGKILL}, {Who::worker, SIGSEGV, 128 + SIGSEGV},
    {Who::worker, SIGABRT, 128 + SIGABRT}, {Who::worker, SIGPIPE, 128 + SIGPIPE},
    {Who::worker, SIGUSR1, 128 + SIGUSR1},
    {Who::worker, SIGSTOP, 0},
};
constexpr Fault kWhileRunning[] = {
    {Who::acclaunch, SIGTERM, 128 + SIGTERM}, {Who::acclaunch, SIGINT, 128 + SIGINT},
    {Who::acclaunch, SIGHUP, 128 + SIGHUP}, {Who::acclaunch, SIGQUIT, 128 + SIGQUIT},
    {Who::acclaunch, SIGKILL, 128 + SIGKILL}, {Who::acclaunch, SIGSEGV, 128 + SIGSEGV},
    {Who::acclaunch, SIGABRT, 128 + SIGABRT}, {Who::acclaunch, SIGUSR1, 128 + SIGUSR1},
    {Who::acclaunch, SIGUSR2, 128 + SIGUSR2}, {Who::acclaunch, SIGALRM, 128 + SIGALRM},
   
    {Who::acclaunch, SIGPIPE, 0}, {Who::acclaunch, SIGCHLD, 0}, {Who::acclaunch, SIGTTIN, 0},
    {Who::acclaunch, SIGWINCH, 0}, {Who::acclaunch, SIGSTOP, 0}, {Who::acclaunch, SIGTSTP, 0},
    {Who::keeper, SIGPIPE, 0}, {Who::keeper, SIGSTOP, 0},
    {Who::keeper, SIGTERM, 128 + SIGTERM}, {Who::keeper, SIGINT, 128 + SIGINT},
    {Who::keeper, SIGHUP, 128 + SIGHUP}, {Who::keeper, SIGQUIT, 128 + SIGQUIT},
    {Who::keeper, SIGKILL, 128 + SIGKILL}, {Who::keeper, SIGSEGV, 128 + SIGSEGV},
    {Who::keeper, SIGABRT, 128 + SIGABRT}, {Who::keeper, SIGUSR1, 128 + SIGUSR1},
    {Who::supervisor, SIGTERM, 128 + SIGTERM}, {Who::supervisor, SIGINT, 128 + SIGINT},
    {Who::supervisor, SIGHUP, 128 + SIGHUP}, {Who::supervisor, SIGQUIT, 128 + SIGQUIT},
    {Who::supervisor, SIGKILL, 128 + SIGKILL}, {Who::supervisor, SIGSEGV, 128 + SIGSEGV},
    {Who::supervisor, SIGABRT, 128 + SIGABRT}, {Who::supervisor, SIGUSR1, 128 + SIGUSR1},
    {Who::supervisor, SIGPIPE, 0}, {Who::supervisor, SIGSTOP, 0},
    {Who::worker, SIGTERM, 128 + SIGTERM}, {Who::worker, SIGINT, 128 + SIGINT},
    {Who::worker, SIGHUP, 128 + SIGHUP}, {Who::worker, SIGQUIT, 128 + SIGQUIT},
    {Who::worker, SIGKILL, 128 + SIGKILL}, {Who::worker, SIGSEGV, 128 + SIGSEGV},
    {Who::worker, SIGABRT, 128 + SIGABRT}, {Who::worker, SIGPIPE, 128 + SIGPIPE},
    {Who::worker, SIGUSR1, 128 + SIGUSR1},
    {Who::worker, SIGSTOP, 0},
    {Who::workers, SIGTERM, 128 + SIGTERM}, {Who::workers, SIGINT, 128 + SIGINT},
    {Who::workers, SIGHUP, 128 + SIGHUP}, {Who::workers, SIGQUIT, 128 + SIGQUIT},
    {Who::workers, SIGKILL, 128 + SIGKILL}, {Who::workers, SIGSEGV, 128 + SIGSEGV},
    {Who::workers, SIGABRT, 128 + SIGABRT}, {Who::workers, SIGPIPE, 128 + SIGPIPE},
    {Who::workers, SIGUSR1, 128 + SIGUSR1},
    {Who::workers, SIGSTOP, 0},
    {Who::child, SIGTERM, 0}, {Who::child, SIGHUP, 0}, {Who::child, SIGKILL, 0},
    {Who::child, SIGSEGV, 0}, {Who::child, SIGSTOP, 0},
    {Who::session, SIGTERM, 0}, {Who::session, SIGHUP, 0}, {Who::session, SIGKILL, 0},
    {Who::session, SIGSEGV, 0}, {Who::session, SIGSTOP, 0},
};
constexpr Fault kWhileEnding[] = {
    {Who::acclaunch, SIGTERM, 128 + SIGTERM}, {Who::acclaunch, SIGINT, 128 + SIGTERM},
    {Who::acclaunch, SIGHUP, 128 + SIGTERM}, {Who::acclaunch, SIGQUIT, 128 + SIGTERM},
    {Who::acclaunch, SIGKILL, 128 + SIGKILL}, {Who::acclaunch, SIGSEGV, 128 + SIGSEGV},
    {Who::acclaunch, SIGABRT, 128 + SIGABRT},
    {Who::acclaunch, SIGUSR1, 128 + SIGTERM},
    {Who::keeper, SIGKILL, 128 + SIGKILL}, {Who::keeper, SIGSEGV, 128 + SIGSEGV},
    {Who::keeper, SIGABRT, 128 + SIGABRT},
    {Who::keeper, SIGTERM, 128 + SIGTERM}, {Who::keeper, SIGINT, 128 + SIGTERM},
    {Who::supervisor, SIGTERM, 128 + SIGTERM}, {Who::supervisor, SIGINT, 128 + SIGTERM},
    {Who::supervisor, SIGKILL, 128 + SIGKILL}, {Who::supervisor, SIGSEGV, 128 + SIGSEGV},
    {Who::supervisor, SIGABRT, 128 + SIGABRT},
    {Who::workers, SIGKILL, 128 + SIGTERM}, {Who::workers, SIGSEGV, 128 + SIGTERM},
    {Who::workers, SIGUSR1, 128 + SIGTERM},
};
constexpr Fault kInThePause[] = {
    {Who::acclaunch, SIGTERM, 128 + SIGTERM}, {Who::acclaunch, SIGINT, 128 + SIGINT},
    {Who::acclaunch, SIGHUP, 128 + SIGHUP}, {Who::acclaunch, SIGQUIT, 128 + SIGQUIT},
    {Who::acclaunch, SIGKILL, 128 + SIGKILL}, {Who::acclaunch, SIGSEGV, 128 + SIGSEGV},
    {Who::keeper, SIGTERM, 128 + SIGTERM}, {Who::keeper, SIGKILL, 128 + SIGKILL},
    {Who::keeper, SIGSEGV, 128 + SIGSEGV},
    {Who::supervisor, SIGTERM, 128 + SIGTERM}, {Who::supervisor, SIGKILL, 128 + SIGKILL},
    {Who::supervisor, SIGSEGV, 128 + SIGSEGV},
    {Who::acclaunch, SIGSTOP, 3}, {Who::acclaunch, SIGUSR1, 3},
};
// clang-format on

}  // namespace

TEST_CASE("faults: while the launcher reads its config file") {
  check(When::reading, kWhileReading);
}

TEST_CASE("faults: while the workers are started") {
  check(When::starting, kWhileStarting);
}

TEST_CASE("faults: while the workers run") {
  check(When::running, kWhileRunning);
}

TEST_CASE("faults: while the workers end") {
  check(When::ending, kWhileEnding);
}

TEST_CASE("faults: in the pause before a restart") {
  check(When::pausing, kInThePause);
}

TEST_CASE("faults: what is stopped ends all the same") {
  for (const Who who : {Who::keeper, Who::supervisor, Who::worker, Who::workers}) {
    for (const int signal : {SIGTERM, SIGKILL}) {
      CAPTURE(kWho[static_cast<int>(who)]);
      CAPTURE(signal);
      const JobPlace place;
      Gate gate;
      Program job(command_of(When::running, place, gate),
                  {{"TMPDIR", place.folder()}, {"GATE", gate.path()}});
      reach(When::running, job, gate);
      const Watched stopped = targets(who, job);
      for (std::size_t i = 0; i < stopped.size(); ++i) {
        ::kill(stopped[i], SIGSTOP);
        await_stop(stopped[i]);
      }
      job.signal(signal);
      CHECK(job.wait() == 128 + signal);
      CHECK((signal == SIGKILL ? place.left_at_last(job) : place.left(job)) == "nothing");
    }
  }
}

TEST_CASE("faults: Ctrl-Z stops the workers, fg continues them") {
  const JobPlace place;
  Gate gate;
  Program job(command_of(When::running, place, gate),
              {{"TMPDIR", place.folder()}, {"GATE", gate.path()}});
  reach(When::running, job, gate);
  const Watched workers = targets(Who::workers, job);
  job.signal(SIGTSTP);
  await_stop(job.pid());
  await_stop(workers[0]);
  await_stop(workers[1]);
  job.signal(SIGCONT);
  gate.open(kWorkers);
  CHECK(job.wait() == 0);
  CHECK(place.left(job) == "nothing");
}

TEST_CASE("faults: processes that start others, faster than one can look, end with the job") {
  for (const int signal : {SIGTERM, SIGKILL}) {
    CAPTURE(signal);
    const JobPlace place;
    Program job(acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", place.port()},
                          "setsid sh -c 'trap \"\" TERM; while :; do setsid sh -c \"sleep 1000 & "
                          "sleep 0.01\" & wait $!; done' &\n"
                          "echo worker-up; exec sleep 1000"),
                {{"TMPDIR", place.folder()}});
    job.wait_for_text("worker-up", 2);
    job.signal(signal);
    CHECK(job.wait() == 128 + signal);
    CHECK((signal == SIGKILL ? place.left_at_last(job) : place.left(job)) == "nothing");
  }
}
