#include "support/program.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

// Without a launcher that would end them: what the runtime itself does when a peer dies.
namespace {

using acc::test::Program;

struct Layout {
  const char* name;
  int ranks;
  int machines;
};

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

}  // namespace

TEST_CASE("a killed peer is named by every rank that waits for it") {
  for (const Layout layout : {Layout{"shm", 3, 1}, Layout{"gloo", 3, 3}, Layout{"both", 4, 2}}) {
    CAPTURE(layout.name);
    Program store({std::string(ACC_BIN_DIR) + "/acc-rendezvous", "--port", "0"});
    store.wait_for_text("listening on 127.0.0.1:");
    const std::size_t colon = store.out().rfind(':');
    const std::string port = std::to_string(std::stoi(store.out().substr(colon + 1)));
    const int victim = layout.ranks - 1;
    std::vector<std::unique_ptr<Program>> ranks;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      ranks.push_back(std::make_unique<Program>(
          std::vector<std::string>{std::string(ACC_BIN_DIR) + "/group_probe",
                                   std::to_string(victim)},
          identity(layout, rank, port)));
    }
    for (int rank = 0; rank < layout.ranks; ++rank) {
      Program& each = *ranks[static_cast<std::size_t>(rank)];
      const int status = each.wait();
      CAPTURE(rank);
      CAPTURE(each.err());
      CHECK(status == (rank == victim ? 137 : 42));
      if (rank != victim) {
        CHECK(each.err().find("rank " + std::to_string(victim)) != std::string::npos);
      }
    }
  }
}
