// The processes of a job: what they need, and what is left when some of them are killed or stopped.
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>

using namespace acc::test;

namespace {

/// /bin/sh -c "before; exec acclaunch --cpu [flags] /bin/sh -c script"
std::vector<std::string> in_shell(const std::string& before, const std::string& flags,
                                  const std::string& script) {
  return {"/bin/sh", "-c",
          before + "; exec " ACC_BIN_DIR "/acclaunch --cpu " + flags + " /bin/sh -c \"$0\"",
          script};
}

}  // namespace

TEST_CASE("processes: 32 workers under a soft limit of 64 descriptors, which they see") {
  Program job(in_shell("ulimit -Sn 64", "--num_processes 32", "echo limit=$(ulimit -Sn) end"));
  CHECK(job.wait() == 0);
  const Watched limits(job.out(), "limit=");
  CHECK(limits.size() == 32);
  CHECK(contains(job.out(), "[31] limit=64 end\n"));
}

TEST_CASE("processes: a hard limit of 64 descriptors is enough for few, and refuses 32 clearly") {
  Program few(in_shell("ulimit -n 64", "--num_processes 4", "echo limit=$(ulimit -Sn) end"));
  CHECK(few.wait() == 0);
  CHECK(contains(few.out(), "[3] limit=64 end\n"));
  for (const char* limit : {"64", "30", "26", "16", "8"}) {
    CAPTURE(limit);
    Program job(in_shell(std::string("ulimit -n ") + limit, "--num_processes 32", "echo started"));
    CHECK(job.wait() == 2);
    CHECK(contains(job.err(), " needs "));
    CHECK(contains(job.err(), std::string("the hard limit is ") + limit));
    CHECK(contains(job.err(), "ulimit -Hn"));
    CHECK(job.out().empty());
  }
}

TEST_CASE("processes: a standard stream that was closed at the start harms nobody") {
  for (const char* closing :
       {"exec <&-", "exec >&-", "exec 2>&-", "exec <&- >&-", "exec <&- >&- 2>&-"}) {
    CAPTURE(closing);
    const TemporaryFolder folder;
    const std::string script = "readlink /proc/$$/fd/0 >" + folder.path().string() + "/$RANK";
    Program job(in_shell(closing, "--num_processes 2", script));
    CHECK(job.wait() == 0);
    for (const char* rank : {"0", "1"}) {
      std::string input;
      std::ifstream(folder.path() / rank) >> input;
      CHECK(input == "/dev/null");
    }
    Program failing(in_shell(closing, "--num_processes 2", "echo a word; exit 3"));
    CHECK(failing.wait() == 3);
  }
}
