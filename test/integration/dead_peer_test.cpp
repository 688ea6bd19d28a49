// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tcp_store.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// A rank that dies, leaves, stops or calls another collective: the errors of its peers, and the
// failure report.
namespace {

using acc::test::contains;
using acc::test::Program;

struct Layout {
  const char* name;
  int ranks;
  int machines;
};

constexpr Layout kLayouts[] = {{"shm", 3, 1}, {"gloo", 3, 3}, {"both", 4, 2}};

struct Fault {
  const char* how;      ///< argument of group_probe
  int status;           ///< exit status of the rank at fault; -1: it must be killed
  const char* timeout;  ///< timeout of collectives, in seconds
};

/// The timeout of a rank that only the timeout finds. It also limits how late the others may be on
/// a busy machine.
constexpr const char* kElapses = "20";
constexpr const char* kFar = "1800";
constexpr Fault kFaults[] = {{"killed", 128 + SIGKILL, kFar},
                             {"exits", 0, kFar},
                             {"fails", 128 + SIGABRT, kFar},
                             {"other", 42, kFar},
                             {"size", 42, kFar},
                             {"stops", -1, kElapses},
                             {"late", -1, kElapses}};

std::vector<std::string> probe(int at_fault, const char* how) {
  return {std::string(ACC_BIN_DIR) + "/group_probe", std::to_string(at_fault), how};
}

std::map<std::string, std::string> identity(Layout layout, int rank, const std::string& port) {
  const int local = layout.ranks / layout.machines;
  return {{"RANK", std::to_string(rank)},
          {"LOCAL_RANK", std::to_string(rank % local)},
          {"WORLD_SIZE", std::to_string(layout.ranks)},
          {"LOCAL_WORLD_SIZE", std::to_string(local)},
          {"GROUP_RANK", std::to_string(rank / local)},
          {"GROUP_WORLD_SIZE", std::to_string(layout.machines)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port}};
}

/// Returns the number that follows `mark`.
long long time_after(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  return at == std::string::npos ? 0 : std::stoll(text.substr(at + mark.size()));
}

/// The ranks of one job without a launcher, which would end them.
class PeerJob {
 public:
  PeerJob(const Layout& layout, const Fault& fault)
      : layout_(layout),
        fault_(fault),
        store_({std::string(ACC_BIN_DIR) + "/acc-rendezvous", "--port", "0"}) {
    store_.wait_for_text("listening on 127.0.0.1:");
    const std::size_t colon = store_.out().rfind(':');
    const std::string port = std::to_string(std::stoi(store_.out().substr(colon + 1)));
    for (int rank = 0; rank < layout.ranks; ++rank) {
      auto variables = identity(layout, rank, port);
      variables["ACC_COLLECTIVE_TIMEOUT"] = fault.timeout;
      ranks_.push_back(std::make_unique<Program>(probe(layout.ranks - 1, fault.how), variables));
    }
  }

  /// Waits for the end. Prints the time after which each rank got the error.
  void check() {
    const int at_fault = layout_.ranks - 1;
    std::vector<long long> told;
    for (int rank = 0; rank < at_fault; ++rank) {
      Program& each = *ranks_[static_cast<std::size_t>(rank)];
      const int status = each.wait();
      CAPTURE(rank);
      CAPTURE(each.err());
      CHECK(status == 42);
      CHECK(contains(each.err(), "rank " + std::to_string(at_fault)));
      CHECK(contains(each.err(), "(in the reduction of unit transformer.h.2, backward)"));
      told.push_back(time_after(each.err(), "told at "));
    }
    Program& culprit = *ranks_.back();
    if (fault_.status < 0) {
      culprit.signal(SIGKILL);
    }
    CHECK(culprit.wait() == (fault_.status < 0 ? 128 + SIGKILL : fault_.status));
    std::printf("%-5s %-7s heard of after", layout_.name, fault_.how);
    for (const long long time : told) {
      std::printf(" %lld", time - time_after(culprit.err(), "at fault at "));
    }
    std::printf(" ms\n");
  }

 private:
  const Layout& layout_;
  const Fault& fault_;
  Program store_;
  std::vector<std::unique_ptr<Program>> ranks_;
};

/// Starts one launcher per machine.
std::vector<std::unique_ptr<Program>> launch(Layout layout, const acc::test::ReservedPort& port,
                                             const char* how, const char* timeout) {
  std::vector<std::unique_ptr<Program>> machines;
  for (int machine = 0; machine < layout.machines; ++machine) {
    std::vector<std::string> command = {std::string(ACC_BIN_DIR) + "/acclaunch",
                                        "--cpu",
                                        "--num_processes",
                                        std::to_string(layout.ranks),
                                        "--num_machines",
                                        std::to_string(layout.machines),
                                        "--machine_rank",
                                        std::to_string(machine),
                                        "--main_process_ip",
                                        "127.0.0.1",
                                        "--main_process_port",
                                        port.text()};
    for (std::string& word : probe(layout.ranks - 1, how)) {
      command.push_back(std::move(word));
    }
    machines.push_back(std::make_unique<Program>(
        command, std::map<std::string, std::string>{{"ACC_COLLECTIVE_TIMEOUT", timeout}}));
  }
  return machines;
}

/// The ranks of one job with one launcher per machine.
class LaunchedJob {
 public:
  LaunchedJob(const Layout& layout, const Fault& fault)
      : layout_(layout),
        fault_(fault),
        machines_(launch(layout, port_, fault.how, fault.timeout)) {}

  /// Waits for the end. All launchers print the same report.
  void check() {
    const std::string rank = "rank " + std::to_string(layout_.ranks - 1);
    const std::string how = fault_.how;
    for (const auto& machine : machines_) {
      CHECK(machine->wait() != 0);
      CAPTURE(machine->err());
      CHECK(contains(machine->err(), "  last collectives:\n"));
      const std::string late =
          "  late      " + rank + " did not enter all_reduce 4 of unit transformer.h.2, backward";
      if (how == "other" || how == "size") {
        CHECK(contains(machine->err(), "  differs   " + rank + " called "));
      } else {
        // A peer may lose its connection and end before the rank at fault has ended.
        const bool by_itself = how == "killed" || how == "fails";
        const bool is_first = contains(machine->err(), "the job failed: " + rank + ": ");
        CHECK(((by_itself && is_first) || contains(machine->err(), late)));
      }
    }
  }

 private:
  const Layout& layout_;
  const Fault& fault_;
  const acc::test::ReservedPort port_;
  const std::vector<std::unique_ptr<Program>> machines_;
};

/// Runs every fault in every layout. Those that only the timeout ends wait for it at the same time.
template <typename Kind>
void check_all() {
  std::vector<std::function<void()>> waiting;
  for (const Fault& fault : kFaults) {
    for (const Layout& layout : kLayouts) {
      const auto job = std::make_shared<Kind>(layout, fault);
      const auto check = [&layout, &fault, job] {
        CAPTURE(layout.name);
        CAPTURE(fault.how);
        job->check();
      };
      if (fault.timeout == kElapses) {
        waiting.emplace_back(check);
      } else {
        check();
      }
    }
  }
  for (const auto& check : waiting) {
    check();
  }
}

/// Four ranks on two machines wait for one. Meanwhile a foreign client connects to the store.
void check_stranger_at_store() {
  const acc::test::ReservedPort port;
  const auto machines = launch({"both", 4, 2}, port, "late", kElapses);
  machines[1]->wait_for_text("at fault at ");  // all groups are made
  acc::rendezvous::TcpStore store("127.0.0.1", static_cast<std::uint16_t>(std::stoi(port.text())),
                                  std::chrono::seconds(30));
  CHECK(store.num_keys() > 0);
  CHECK(store.list_keys().empty());
  for (const char* guess :
       {"acc/none/0/0", "unlisted/acc/none/0/0", "unlisted/acc/0000000000000000/none/0/0"}) {
    for (const char* group : {"world0", "world0/column0", "world0/column1"}) {
      store.set(std::string(guess) + "/" + group + "/abort", "a stranger's words");
    }
  }
  for (const auto& machine : machines) {
    CHECK(machine->wait() == 42);
    CAPTURE(machine->err());
    CHECK(contains(machine->err(), "rank 3"));
    CHECK_FALSE(contains(machine->err(), "a stranger's words"));
  }
}

/// A rank never enters a collective, and the job's time limit ends the job.
void check_time_limit() {
  std::vector<std::string> command = {
      std::string(ACC_BIN_DIR) + "/acclaunch", "--cpu", "--num_processes", "3", "--timeout", "20"};
  for (std::string& word : probe(1, "late")) {
    command.push_back(std::move(word));
  }
  Program launcher(command);
  CHECK(launcher.wait() == 124);
  CAPTURE(launcher.err());
  CHECK(contains(launcher.err(), "the job failed: the time limit of 20 s (--timeout) is exceeded"));
  CHECK(contains(launcher.err(),
                 "  late      rank 1 did not enter all_reduce 4 of unit "
                 "transformer.h.2, backward, in which ranks 0,2 waited for "));
}

}  // namespace

TEST_CASE("the report of a job that exceeded its time limit names the late rank") {
  check_time_limit();
}

TEST_CASE("a foreign client of a job's store cannot read the ranks' keys or end the job") {
  check_stranger_at_store();
}

TEST_CASE("a rank that dies, leaves, stops or differs is named by its peers, with the unit") {
  check_all<PeerJob>();
}

TEST_CASE("a rank that dies, leaves, stops or differs is named by the report, with the unit") {
  check_all<LaunchedJob>();
}
