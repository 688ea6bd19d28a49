// SPDX-License-Identifier: Apache-2.0
// Unusual streams and signals of the launcher at its start, and workers that close their streams.
#include "support/acclaunch.hpp"
#include "support/gate.hpp"
#include "support/left_behind.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>

using namespace acc::test;

namespace {

std::string workers_flag(const std::string& workers) {
  return "--num_processes " + workers;
}

}  // namespace

TEST_CASE("streams: any of the launcher's three standard streams may be closed") {
  const std::string script =
      "for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] || exit 9; done\n"
      "echo out; echo err >&2; exit 3";
  for (const std::string workers : {"1", "2"}) {
    for (unsigned closed = 0; closed < 8; ++closed) {
      std::string redirections;
      redirections += (closed & 1U) != 0 ? "0<&- " : "";
      redirections += (closed & 2U) != 0 ? "1>&- " : "";
      redirections += (closed & 4U) != 0 ? "2>&- " : "";
      CAPTURE(workers);
      CAPTURE(redirections);
      const JobPlace place;
      Program job(in_shell(script, {.flags = workers_flag(workers), .redirections = redirections}),
                  {{"TMPDIR", place.folder()}});
      CHECK(job.wait() == 3);
      CHECK(contains(job.out(), "out\n") == ((closed & 2U) == 0));
      CHECK(contains(job.err(), "err\n") == ((closed & 4U) == 0));
      CHECK(contains(job.err(), "exited with code 3") == ((closed & 4U) == 0));
      CHECK(place.left(job) == "nothing");
    }
  }
}

TEST_CASE("streams: a console file at the file size limit is treated like a full disk") {
  const std::string script =
      "i=0; while [ $i -lt 2000 ]; do echo a line of this rank; i=$((i+1)); done; exit 3";
  const JobPlace place;
  Program job(in_shell(script, {.before = "ulimit -f 8", .redirections = "> \"$TMPDIR/console\""}),
              {{"TMPDIR", place.folder()}});
  CHECK(job.wait() == 3);
  CHECK(contains(job.err(), "acclaunch: cannot write to stdout: File too large"));
  CHECK(contains(job.err(), "exited with code 3"));
}

TEST_CASE("streams: a job whose reader has gone ends with status 141, with or without output") {
  struct Case {
    std::string workers;
    std::string script;
  };
  const Case kCases[] = {
      {"1", "exec yes"},  // a single worker has the launcher's own stdout
      {"2", "exec yes"},
      {"2", "trap '' PIPE; while :; do echo y; done"},
      {"2", "echo y; exec sleep 1000"},
  };
  for (const auto& [workers, script] : kCases) {
    CAPTURE(workers);
    CAPTURE(script);
    const JobPlace place;
    Program job({"/bin/sh", "-c",
                 "{ " ACC_BIN_DIR "/acclaunch --cpu --num_processes " + workers +
                     " /bin/sh -c \"$0\"; echo status=$? >&2; } | head -n 1",
                 script},
                {{"TMPDIR", place.folder()}});
    CHECK(job.wait() == 0);
    CHECK(contains(job.out(), "y\n"));
    CHECK(contains(job.err(), "status=141\n"));
    CHECK(contains(job.err(), "the reader of stdout has closed it (EPIPE): ending the workers\n") ==
          (workers != "1"));
    CHECK(place.left(job) == "nothing");
  }
}

TEST_CASE(
    "streams: a job whose reader goes while it waits for other machines ends with status 141") {
  const JobPlace place;
  Program job({"/bin/sh", "-c",
               "{ " ACC_BIN_DIR "/acclaunch --cpu --num_processes 2 --num_machines 2 "
               "--machine_rank 0 --main_process_ip 127.0.0.1 --main_process_port $PORT "
               "true 2>&1; echo status=$? >&2; } | head -n 1"},
              {{"TMPDIR", place.folder()}, {"PORT", place.port()}});
  CHECK(job.wait() == 0);
  CHECK(contains(job.out(), "acclaunch: "));
  CHECK(contains(job.err(), "status=141\n"));
  CHECK(place.left(job) == "nothing");
}

TEST_CASE("streams: a stopped job does not wait for a reader that has stopped reading") {
  const JobPlace place;
  Gate reader;
  reader.open(0);
  // More than the capacity of a pipe, less than the launcher's buffer.
  Program job(in_shell("head -c 150000 /dev/zero | tr '\\0' '~'\n"
                       "echo worker-up >&2; exec sleep 1000",
                       {.flags = "--num_processes 2 --shutdown_timeout 1",
                        .redirections = "> " + reader.path()}),
              {{"TMPDIR", place.folder()}});
  job.wait_for_text("worker-up", 2);
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
  CHECK(place.left(job) == "nothing");
}

TEST_CASE("streams: a job does not wait for processes that keep a worker's pipe open") {
  const std::string kHolders[] = {
      "sleep 1000 &",
      "setsid sleep 1000 &",
      "setsid sh -c 'setsid sleep 1000 &' &",
      "setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000; sleep 1000' &",
  };
  for (const std::string workers : {"1", "2"}) {
    for (const std::string& holder : kHolders) {
      for (const int status : {0, 6}) {
        CAPTURE(workers);
        CAPTURE(holder);
        const JobPlace place;
        Program job(in_shell(holder + "\necho last words; exit " + std::to_string(status),
                             {.flags = workers_flag(workers)}),
                    {{"TMPDIR", place.folder()}});
        CHECK(job.wait() == status);
        CHECK(contains(job.out(), "last words\n"));
        CHECK(place.left(job) == "nothing");
      }
    }
  }
}

TEST_CASE("streams: a worker may close its own streams") {
  for (const std::string closes : {"exec >&-", "exec 2>&-", "exec >&- 2>&-", "exec <&- >&- 2>&-"}) {
    CAPTURE(closes);
    const JobPlace place;
    Gate gate;
    Program job(in_shell("echo worker-up; echo worker-up >&2\n" + closes +
                         "\nread -r line < $GATE; exit 4"),
                {{"TMPDIR", place.folder()}, {"GATE", gate.path()}});
    job.wait_for_text("worker-up", 4);
    gate.open(2);
    CHECK(job.wait() == 4);
    CHECK(contains(job.err(), "exited with code 4"));
    CHECK(place.left(job) == "nothing");
  }
}

TEST_CASE("streams: a megabyte without a newline is shown even if the worker is killed") {
  constexpr int kBytes = 1000000;
  for (const std::string stream : {"", ">&2"}) {
    for (const std::string workers : {"1", "2"}) {
      CAPTURE(stream);
      CAPTURE(workers);
      const JobPlace place;
      Program job(in_shell("[ ${RANK:-0} = 0 ] || exec sleep 1000\n"
                           "head -c 1000000 /dev/zero | tr '\\0' '~' " +
                               stream + "; kill -9 $$",
                           {.flags = workers_flag(workers)}),
                  {{"TMPDIR", place.folder()}});
      CHECK(job.wait() == 128 + SIGKILL);
      const std::string& text = stream.empty() ? job.out() : job.err();
      CHECK(std::ranges::count(text, '~') >= kBytes);  // the report repeats the last part
      CHECK(contains(job.err(), "killed by SIGKILL"));
      CHECK(place.left(job) == "nothing");
    }
  }
}

TEST_CASE("streams: bytes of any kind pass through unchanged") {
  Program job(in_shell(R"([ $RANK = 0 ] || exit 0
    printf 'a\000b\377\376\001\033c\n')"));
  CHECK(job.wait() == 0);
  CHECK(job.out() == std::string("[0] a\0b\377\376\001\033c\n", 13));
}

TEST_CASE("signals: signals that were ignored at the launcher's start stay ignored") {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGUSR1}) {
    CAPTURE(signal);
    const JobPlace place;
    Gate gate;
    Program job(in_shell("echo worker-up; read -r line < $GATE",
                         {.before = "trap '' " + std::string(::sigabbrev_np(signal))}),
                {{"TMPDIR", place.folder()}, {"GATE", gate.path()}});
    job.wait_for_text("worker-up", 2);
    job.signal(signal);
    gate.open(2);
    CHECK(job.wait() == 0);
    CHECK(place.left(job) == "nothing");
  }
}

TEST_CASE("signals: the launcher works with any signals blocked or ignored by its parent") {
  const std::string script =
      "grep -q 'SigBlk:.0*$' /proc/self/status || exit 9\n"
      "echo worker-up; read -r line < $GATE; exit 7";
  for (const std::string option : {"--ignore-signal=CHLD", "--ignore-signal=PIPE", "--block-signal",
                                   "--ignore-signal=TTOU --block-signal=CHLD"}) {
    for (const bool stops : {false, true}) {
      CAPTURE(option);
      CAPTURE(stops);
      const JobPlace place;
      Gate gate;
      Program job(in_shell(script, {.wrapper = "env " + option + " "}),
                  {{"TMPDIR", place.folder()}, {"GATE", gate.path()}});
      job.wait_for_text("worker-up", 2);
      if (stops) {
        job.signal(SIGTERM);
      } else {
        gate.open(2);
      }
      CHECK(job.wait() == (stops ? 128 + SIGTERM : 7));
      CHECK(place.left(job) == "nothing");
    }
  }
}
