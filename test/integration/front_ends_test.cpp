// SPDX-License-Identifier: Apache-2.0
// The torchrun and deepspeed front ends, selected by sub-command or by the name of a link.
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

using namespace acc::test;
namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

/// `start` [flags] /bin/sh -c script
Words command(Words start, const Words& flags, const std::string& script) {
  start.insert(start.end(), flags.begin(), flags.end());
  start.insert(start.end(), {"/bin/sh", "-c", script});
  return start;
}

Words front_end(const std::string& name) {
  return {ACC_BIN_DIR "/acclaunch", name};
}

/// A link to acclaunch with the name of another launcher.
class Link {
 public:
  explicit Link(const std::string& name) : path_(folder_.path() / name) {
    fs::create_symlink(ACC_BIN_DIR "/acclaunch", path_);
  }
  [[nodiscard]] Words word() const { return {path_.string()}; }

 private:
  TemporaryFolder folder_;
  fs::path path_;
};

}  // namespace

TEST_CASE("front ends: a link named torchrun is torchrun") {
  const Link link("torchrun");
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_WORLD_SIZE $MASTER_ADDR "
      "$TORCHELASTIC_MAX_RESTARTS $ROLE_NAME $OMP_NUM_THREADS ${ACCELERATE_MIXED_PRECISION-none}; "
      "[ ${#TORCHELASTIC_RUN_ID} = 36 ] && [ $MASTER_PORT -gt 0 ] && echo random";
  for (const Words& start : {link.word(), front_end("torchrun")}) {
    Program job(command(start, {"--nproc_per_node=2", "--role", "r"}, script),
                {{"PET_MAX_RESTARTS", "2"}, {"OMP_NUM_THREADS", "3"}});
    CHECK(job.wait() == 0);
    CHECK(contains(job.out(), "[0] 0 0 2 1 localhost 2 r 3 none\n"));
    CHECK(contains(job.out(), "[1] 1 1 2 1 localhost 2 r 3 none\n"));
    CHECK(contains(job.out(), "[1] random\n"));
  }
}

TEST_CASE("front ends: the arguments of a link are flags and a program, never a sub-command") {
  const Link link("torchrun");
  Program help({link.word()[0], "--help"});
  CHECK(help.wait() == 0);
  CHECK(contains(help.out(), "--nproc-per-node"));
  Program wrong({link.word()[0], "--nproc-per-nod", "lots", "--nnodes=0", "explain"});
  CHECK(wrong.wait() == 2);
  CHECK(contains(wrong.err(), "--nproc-per-nod must be a number, auto, cpu or gpu, got \"lots\""));
  CHECK(contains(wrong.err(), "--nnodes must be"));
}

TEST_CASE("front ends: torchrun returns the status of the worker that failed") {
  Program job(command(front_end("torchrun"), {"--nproc-per-node=2"},
                      "[ $RANK = 1 ] && exit 7; exec sleep 60"));
  CHECK(job.wait() == 7);
  CHECK(contains(job.err(), "rank 1: exited with code 7"));
}

TEST_CASE(
    "front ends: a stop signal of torchrun ends the job, others are passed on to the workers") {
  const std::string script =
      "trap 'echo told; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
  for (const auto& [list, says, status] :
       {std::tuple{"SIGTERM,SIGUSR1", "SIGUSR1: ending the workers", 128 + SIGUSR1},
        std::tuple{"SIGTERM", "told", 0}}) {
    CAPTURE(list);
    Program job(command(front_end("torchrun"), {"--nproc-per-node=2", "--signals-to-handle", list},
                        script));
    job.wait_for_text("ready", 2);
    job.signal(SIGUSR1);
    CHECK(job.wait() == status);
    CHECK(contains(job.out() + job.err(), says));
    CHECK(contains(job.out(), "[1] told"));
  }
}

TEST_CASE("front ends: local rank in the arguments, and redirected streams") {
  const TemporaryFolder folder;
  Words words = command(front_end("torchrun"),
                        {"--nproc-per-node=2", "-r1:1", "--log-dir", folder.path().string(),
                         "--rdzv-id=job", "--master-port=0"},
                        "echo out $1; echo err >&2");
  words.insert(words.end(), {"sh", "${local_rank}-of-2"});
  Program job(words);
  CHECK(job.wait() == 0);
  CHECK(contains(job.out(), "[0] out 0-of-2\n"));
  CHECK_FALSE(contains(job.out(), "1-of-2"));
  CHECK(contains(job.err(), "[1] err\n"));
  Words runs;
  for (const auto& run : fs::directory_iterator(folder.path())) {
    runs.push_back(run.path().filename().string());
    std::ifstream log(run.path() / "attempt_0/1/stdout.log");
    std::string line;
    std::getline(log, line);
    CHECK(line == "out 1-of-2");
    CHECK_FALSE(fs::exists(run.path() / "attempt_0/0/stdout.log"));
  }
  REQUIRE(runs.size() == 1);
  CHECK(runs.front().starts_with("job_"));
}

// 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
TEST_CASE("front ends: only a default port in use is replaced by a free port") {
  for (const Words& start :
       {Words{"torchrun", "--nproc-per-node=2", "--rdzv-backend=static",
              "--rdzv-endpoint=192.0.2.1", "--no-python"},
        Words{"deepspeed", "--num_gpus=2", "--master_addr=192.0.2.1", "--no_python"}}) {
    Program job(command({ACC_BIN_DIR "/acclaunch"}, start, "echo started"));
    CHECK(job.wait() == 2);
    CAPTURE(job.err());
    CHECK(contains(job.err(), "cannot listen on 192.0.2.1:29500: Cannot assign requested address"));
    CHECK(job.out().empty());
  }
}

TEST_CASE("front ends: a link named deepspeed is deepspeed") {
  const Link link("deepspeed");
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "hosts") << "node0 slots=1\nnode1 slots=2\n";
  std::ofstream(folder.path() / ".deepspeed_env") << "FROM_FILE=yes\n";
  const ReservedPort port;
  const auto start = [&](const Words& extra) {
    Words flags = {"-H",
                   (folder.path() / "hosts").string(),
                   "--no_ssh",
                   "--no_python",
                   "--no_local_rank",
                   "--master_addr=127.0.0.1",
                   "--master_port=" + port.text()};
    flags.insert(flags.end(), extra.begin(), extra.end());
    return command(link.word(), flags,
                   "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_SIZE $CROSS_RANK $CROSS_SIZE "
                   "$MASTER_ADDR $FROM_FILE ${LOCAL_WORLD_SIZE-none}");
  };
  const std::map<std::string, std::string> variables = {{"HOME", folder.path().string()},
                                                        {"ACC_SIMULATE_GPUS", "0"}};
  Program first(start({"--node_rank=0"}), variables);
  Program second(start({"--node_rank=1"}), variables);
  CHECK(first.wait() == 0);
  CHECK(second.wait() == 0);
  CHECK(contains(first.out(), prefix(0) + "0 0 3 1 0 2 127.0.0.1 yes none\n"));
  CHECK(contains(second.out(), prefix(1) + "1 0 3 2 1 2 127.0.0.1 yes none\n"));
  CHECK(contains(second.out(), prefix(2) + "2 1 3 2 1 2 127.0.0.1 yes none\n"));
}

TEST_CASE("front ends: machines with different numbers of workers, with fixed or assigned ranks") {
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE of $GROUP_WORLD_SIZE";
  for (const std::string backend : {"static", "c10d"}) {
    CAPTURE(backend);
    const ReservedPort port;
    const auto start = [&](const std::string& rank, const std::string& workers) {
      Words flags = {"--nnodes=2", "--rdzv-backend=" + backend, "--nproc-per-node=" + workers,
                     "--rdzv-endpoint=127.0.0.1:" + port.text()};
      if (backend == "static") {
        flags.push_back("--node-rank=" + rank);
      }
      return command(front_end("torchrun"), flags, script);
    };
    Program first(start("0", "1"));
    Program second(start("1", "2"));
    CHECK(first.wait() == 0);
    CHECK(second.wait() == 0);
    const std::string out = first.out() + second.out();
    const bool first_leads = contains(first.out(), prefix(0) + "0 0 3 1 of 2\n");
    CHECK((first_leads || backend == "c10d"));
    CHECK(contains(out, first_leads ? prefix(1) + "1 0 3 2 of 2\n" : prefix(0) + "0 0 3 2 of 2\n"));
    CHECK(contains(out, first_leads ? prefix(2) + "2 1 3 2 of 2\n" : prefix(1) + "1 1 3 2 of 2\n"));
    CHECK(contains(out, first_leads ? prefix(0) + "0 0 3 1 of 2\n" : prefix(2) + "2 0 3 1 of 2\n"));
  }
}
