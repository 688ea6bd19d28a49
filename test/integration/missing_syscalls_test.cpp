// SPDX-License-Identifier: Apache-2.0
// Launcher and runtime on kernels and in sandboxes that lack system calls for which there is a
// fallback. A seccomp filter makes these calls fail in the programs under test.
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

using namespace acc::test;

namespace {

using Words = std::vector<std::string>;

const std::string kBin = ACC_BIN_DIR;
constexpr const char* kMissing =
    "pidfd_open,pidfd_send_signal,clone3,futex_waitv,io_uring_setup,close_range";

/// Returns the command with these system calls disabled.
Words without_syscalls(const Words& command) {
  Words all = {kBin + "/without_syscalls", kMissing};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

Words acclaunch(const Words& flags, const std::string& script) {
  Words command = {kBin + "/acclaunch"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"/bin/sh", "-c", script});
  return without_syscalls(command);
}

/// Skips the test on machines that forbid seccomp.
void skip_without_seccomp() {
  if (Program(without_syscalls({"/bin/true"})).wait() == 77) {
    std::exit(77);
  }
}

std::vector<double> losses(const Words& command, const std::string& metrics) {
  Program job(command);
  const int status = job.wait();
  CAPTURE(job.err());
  REQUIRE(status == 0);
  std::vector<double> values;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    values.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  }
  return values;
}

}  // namespace

TEST_CASE("missing system calls: the filter works") {
  skip_without_seccomp();
  Program probe(without_syscalls({"/usr/bin/env", "python3", "-c", R"(
import os
try:
    os.pidfd_open(os.getpid())
except OSError as error:
    print(error.strerror))"}));
  CHECK(probe.wait() == 0);
  CHECK(contains(probe.out(), "Function not implemented"));
}

TEST_CASE("missing system calls: a lock that is refused is an error by name") {
  skip_without_seccomp();
  const TemporaryFolder folder;
  const std::string state = folder.path() / "state";
  const auto without_locks = [](Words command) {
    const Words filter = {kBin + "/without_syscalls", "flock:EPERM"};
    command.insert(command.begin(), filter.begin(), filter.end());
    return command;
  };
  Program daemon(without_locks({kBin + "/acc-rendezvous", "--port", "0", "--state_dir", state}));
  CHECK(daemon.wait() == 2);
  CHECK_MESSAGE(contains(daemon.err(), "cannot lock " + state + "/lock: Operation not permitted"),
                daemon.err());
  const std::string trace = folder.path() / "trace";
  Program job(without_locks(
      {kBin + "/acclaunch", "--cpu", "--trace", trace, "/bin/sh", "-c", "echo done"}));
  CHECK(job.wait() == 0);
  CHECK_MESSAGE(contains(job.err(), "ACC_TRACE: cannot lock " + trace +
                                        "/machine-0.json.lock: "
                                        "Operation not permitted"),
                job.err());
}

TEST_CASE("missing system calls: exit codes and output arrive") {
  skip_without_seccomp();
  Program good(acclaunch({"--cpu", "--num_processes", "2"}, "echo out $RANK"));
  CHECK(good.wait() == 0);
  CHECK(contains(good.out(), "[0] out 0\n"));
  CHECK(contains(good.out(), "[1] out 1\n"));
  Program bad(
      acclaunch({"--cpu", "--num_processes", "2"}, "[ $RANK = 1 ] && exit 77; exec sleep 1000"));
  CHECK(bad.wait() == 77);
  CHECK(contains(bad.err(), "the job failed: rank 1: exited with code 77\n"));
}

TEST_CASE("missing system calls: a launch without sched_getaffinity") {
  skip_without_seccomp();
  for (const char* missing : {"sched_getaffinity", "sched_getaffinity:EPERM"}) {
    CAPTURE(missing);
    Program job({kBin + "/without_syscalls", missing, kBin + "/acclaunch", "--cpu",
                 "--num_processes", "2", "/bin/sh", "-c", "echo out $RANK"});
    CHECK(job.wait() == 0);
    CHECK(contains(job.out(), "[1] out 1\n"));
  }
}

TEST_CASE("missing system calls: kill -9 of a worker is reported, and nothing is left") {
  skip_without_seccomp();
  Program job(acclaunch({"--cpu", "--num_processes", "2"}, kFamily));
  job.wait_for_text(" end", 2 * kFamilySize);
  const Watched family(job.out(), "pid=");
  Program find({"/bin/sh", "-c",
                "for p in $(cat /proc/" + std::to_string(supervisor_of(job)) + "/task/" +
                    std::to_string(supervisor_of(job)) +
                    "/children); do tr '\\0' '\\n' < /proc/$p/environ | grep -qx RANK=1 && echo "
                    "victim=$p; done; true"});
  CHECK(find.wait() == 0);
  const Watched victim(find.out(), "victim=");
  REQUIRE(victim.size() == 1);
  ::kill(victim[0], SIGKILL);
  CHECK(job.wait() == 128 + SIGKILL);
  CHECK(contains(job.err(), "the job failed: rank 1: killed by SIGKILL (signal 9)\n"));
  CHECK(family.all_end());
}

TEST_CASE("missing system calls: kill -9 of acclaunch or of its supervisor leaves nothing") {
  skip_without_seccomp();
  for (const bool kills_guardian : {true, false}) {
    CAPTURE(kills_guardian);
    Program job(acclaunch({"--cpu", "--num_processes", "2"}, kFamily));
    job.wait_for_text(" end", 2 * kFamilySize);
    const Watched family(job.out(), "pid=");
    REQUIRE(family.size() == 2 * kFamilySize);
    ::kill(kills_guardian ? job.pid() : supervisor_of(job), SIGKILL);
    CHECK(job.wait() == 128 + SIGKILL);
    CHECK(family.all_end());
  }
}

TEST_CASE("missing system calls: training gives the same losses") {
  skip_without_seccomp();
  const TemporaryFolder folder;
  const std::string data = std::string(ACC_TEST_DATA) + "/parity_gpt/tokens.npy";
  const auto command = [&](const std::string& metrics) {
    return Words{kBin + "/acclaunch",
                 "--cpu",
                 "--config_file",
                 ACC_SOURCE_DIR "/configs/fsdp_full_shard.yaml",
                 "--num_processes",
                 "2",
                 kBin + "/train_gpt",
                 "--batches",
                 data,
                 "--layers",
                 "2",
                 "--heads",
                 "4",
                 "--dim",
                 "32",
                 "--seq_len",
                 "64",
                 "--vocab",
                 "256",
                 "--micro_batch",
                 "4",
                 "--steps",
                 "3",
                 "--metrics",
                 metrics};
  };
  const std::string with = (folder.path() / "with.jsonl").string();
  const std::string without = (folder.path() / "without.jsonl").string();
  const std::vector<double> expected = losses(command(with), with);
  CHECK(expected.size() == 3);
  CHECK(losses(without_syscalls(command(without)), without) == expected);
}

TEST_CASE("missing system calls: a killed peer is named by every rank that waits for it") {
  skip_without_seccomp();
  Program store({kBin + "/acc-rendezvous", "--port", "0"});
  store.wait_for_text("listening on 127.0.0.1:");
  const std::string port =
      std::to_string(std::stoi(store.out().substr(store.out().rfind(':') + 1)));
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = std::to_string(rank);
    ranks.push_back(
        std::make_unique<Program>(without_syscalls({kBin + "/group_probe", "2"}),
                                  std::map<std::string, std::string>{{"RANK", text},
                                                                     {"LOCAL_RANK", text},
                                                                     {"WORLD_SIZE", "3"},
                                                                     {"LOCAL_WORLD_SIZE", "3"},
                                                                     {"GROUP_RANK", "0"},
                                                                     {"GROUP_WORLD_SIZE", "1"},
                                                                     {"MASTER_ADDR", "127.0.0.1"},
                                                                     {"MASTER_PORT", port}}));
  }
  for (int rank = 0; rank < 3; ++rank) {  // the dead rank, the last one, stays a zombie until then
    Program& each = *ranks[static_cast<std::size_t>(rank)];
    CAPTURE(rank);
    CHECK(each.wait() == (rank == 2 ? 137 : 42));
    CHECK((rank == 2 || contains(each.err(), "rank 2")));
  }
}
