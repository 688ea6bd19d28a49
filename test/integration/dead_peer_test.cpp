// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tcp_store.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
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

constexpr Fault kFaults[] = {{"killed", 128 + SIGKILL, "1800"},
                             {"exits", 0, "1800"},
                             {"fails", 128 + SIGABRT, "1800"},
                             {"other", 42, "1800"},
                             {"size", 42, "1800"},
                             {"stops", -1, "2"},
                             {"late", -1, "2"}};

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

/// Runs the ranks without a launcher, which would end them. Prints the time after which each rank
/// got the error.
void check_peers(Layout layout, const Fault& fault) {
  Program store({std::string(ACC_BIN_DIR) + "/acc-rendezvous", "--port", "0"});
  store.wait_for_text("listening on 127.0.0.1:");
  const std::size_t colon = store.out().rfind(':');
  const std::string port = std::to_string(std::stoi(store.out().substr(colon + 1)));
  const int at_fault = layout.ranks - 1;
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    auto variables = identity(layout, rank, port);
    variables["ACC_COLLECTIVE_TIMEOUT"] = fault.timeout;
    ranks.push_back(std::make_unique<Program>(probe(at_fault, fault.how), variables));
  }
  std::vector<long long> told;
  for (int rank = 0; rank < at_fault; ++rank) {
    Program& each = *ranks[static_cast<std::size_t>(rank)];
    const int status = each.wait();
    CAPTURE(rank);
    CAPTURE(each.err());
    CHECK(status == 42);
    CHECK(contains(each.err(), "rank " + std::to_string(at_fault)));
    CHECK(contains(each.err(), "(in the reduction of unit transformer.h.2, backward)"));
    told.push_back(time_after(each.err(), "told at "));
  }
  Program& culprit = *ranks.back();
  if (fault.status < 0) {
    culprit.signal(SIGKILL);
  }
  CHECK(culprit.wait() == (fault.status < 0 ? 128 + SIGKILL : fault.status));
  std::printf("%-5s %-7s heard of after", layout.name, fault.how);
  for (const long long time : told) {
    std::printf(" %lld", time - time_after(culprit.err(), "at fault at "));
  }
  std::printf(" ms\n");
}

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

/// Runs the ranks with one launcher per machine. All launchers print the same report.
void check_report(Layout layout, const Fault& fault) {
  const acc::test::ReservedPort port;
  const int at_fault = layout.ranks - 1;
  const auto machines = launch(layout, port, fault.how, fault.timeout);
  const std::string rank = "rank " + std::to_string(at_fault);
  const std::string how = fault.how;
  for (const auto& machine : machines) {
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

/// Four ranks on two machines wait for one. Meanwhile a foreign client connects to the store.
void check_stranger_at_store() {
  const acc::test::ReservedPort port;
  const auto machines = launch({"both", 4, 2}, port, "late", "3");
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
      std::string(ACC_BIN_DIR) + "/acclaunch", "--cpu", "--num_processes", "3", "--timeout", "10"};
  for (std::string& word : probe(1, "late")) {
    command.push_back(std::move(word));
  }
  Program launcher(command);
  CHECK(launcher.wait() == 124);
  CAPTURE(launcher.err());
  CHECK(contains(launcher.err(), "the job failed: the time limit of 10 s (--timeout) is exceeded"));
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
  for (const Fault& fault : kFaults) {
    for (const Layout& layout : kLayouts) {
      CAPTURE(layout.name);
      CAPTURE(fault.how);
      check_peers(layout, fault);
    }
  }
}

TEST_CASE("a rank that dies, leaves, stops or differs is named by the report, with the unit") {
  for (const Fault& fault : kFaults) {
    for (const Layout& layout : kLayouts) {
      CAPTURE(layout.name);
      CAPTURE(fault.how);
      check_report(layout, fault);
    }
  }
}
