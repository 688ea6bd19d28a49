// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

// Ranks as processes, each with a GPU of the stand-in: cases that threads cannot show.
namespace {

using acc::test::Program;
using Variables = std::map<std::string, std::string>;

struct Outcome {
  int status;
  std::string text;
};

/// Runs nccl_probe once per rank, with `variables` in addition to those that the launcher would
/// set.
std::vector<Outcome> run_probes(int ranks, int victim, const Variables& variables) {
  Program store({std::string(ACC_BIN_DIR) + "/acc-rendezvous", "--port", "0"});
  store.wait_for_text("listening on 127.0.0.1:");
  const std::size_t colon = store.out().rfind(':');
  const std::string port = std::to_string(std::stoi(store.out().substr(colon + 1)));
  std::vector<std::unique_ptr<Program>> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    Variables all = {{"RANK", std::to_string(rank)},
                     {"LOCAL_RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(ranks)},
                     {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", port},
                     {"ACC_CUDA_BACKEND", ACC_STANDIN_BACKEND},
                     {"ACC_STANDIN_DEVICES", "3"}};
    for (const auto& [name, value] : variables) {
      all[name] = value;
    }
    programs.push_back(std::make_unique<Program>(
        std::vector<std::string>{std::string(ACC_BIN_DIR) + "/nccl_probe", std::to_string(victim)},
        all));
  }
  std::vector<Outcome> outcomes;
  for (const auto& program : programs) {
    const int status = program->wait();
    outcomes.push_back({status, program->err()});
  }
  return outcomes;
}

constexpr int kNobody = -1;

}  // namespace

TEST_CASE("ranks in separate processes reach each other") {
  for (const Outcome& rank : run_probes(3, kNobody, {})) {
    CAPTURE(rank.text);
    CHECK(rank.status == 0);
    CHECK(rank.text.find("nothing was wrong") != std::string::npos);
  }
}

TEST_CASE("a killed rank is named by the ranks whose GPUs wait for it") {
  for (const char* route : {"nccl", "staged"}) {
    CAPTURE(route);
    const auto outcomes = run_probes(3, 2, {{"ACC_COLLECTIVES", route}});
    CHECK(outcomes[2].status == 137);
    for (const int rank : {0, 1}) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      CAPTURE(rank);
      CAPTURE(outcome.text);
      CHECK(outcome.status == 42);
      CHECK(outcome.text.find("rank 2") != std::string::npos);
    }
  }
}

TEST_CASE("the route of GPU memory follows from GPUs and NCCL, and rank 0 logs the reason") {
  struct Case {
    Variables variables;
    const char* said;
    int status = 0;
  };
  const Case kCases[] = {
      {{}, "collectives between GPUs: nccl (NCCL 2.28.9)"},
      {{{"ACC_COLLECTIVES", "staged"}}, "collectives between GPUs: staged (ACC_COLLECTIVES="},
      {{{"ACC_NCCL_LIBRARY", ACC_STANDIN_NCCL_OLD}}, "nccl (NCCL 2.18.5)"},
      {{{"ACC_STANDIN_NCCL_VERSION", "21704"}},
       "NCCL of ranks 0,1 is 2.17.4, at least 2.18.0 is needed"},
      {{{"ACC_NCCL_LIBRARY", "/nonexistent/libnccl.so.2"}},
       "ranks 0,1 found no NCCL (ACC_NCCL_LIBRARY=/nonexistent/libnccl.so.2: "},
      {{{"ACC_STANDIN_DEVICES", "1"}, {"ACC_SHARE_GPUS", "1"}}, "which NCCL permits from 2.30.0"},
      {{{"ACC_STANDIN_DEVICES", "1"},
        {"ACC_SHARE_GPUS", "1"},
        {"ACC_STANDIN_NCCL_VERSION", "23000"}},
       "NCCL_MULTI_RANK_GPU_ENABLE=1 is not set on ranks 0,1"},
      {{{"ACC_STANDIN_DEVICES", "1"},
        {"ACC_SHARE_GPUS", "1"},
        {"ACC_STANDIN_NCCL_VERSION", "23000"},
        {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}},
       "nccl (NCCL 2.30.0)"},
      {{{"ACC_STANDIN_DEVICES", "1"}, {"ACC_SHARE_GPUS", "1"}, {"ACC_COLLECTIVES", "nccl"}},
       "ACC_COLLECTIVES=nccl is not possible: ranks 0,1 share GPU-",
       42},
      {{{"ACC_NCCL_ZERO_SM", "1"}}, "collectives between GPUs: nccl (NCCL 2.28.9)"},
      {{{"ACC_NCCL_ZERO_SM", "1"}, {"ACC_STANDIN_NCCL_VERSION", "22707"}},
       "ACC_NCCL_ZERO_SM=1 needs NCCL 2.28.0 or newer",
       42},
  };
  for (const Case& each : kCases) {
    CAPTURE(each.said);
    const auto outcomes = run_probes(2, kNobody, each.variables);
    CAPTURE(outcomes[0].text);
    CHECK(outcomes[0].status == each.status);
    CHECK(outcomes[1].status == each.status);
    CHECK(outcomes[0].text.find(each.said) != std::string::npos);
    CHECK((each.status != 0 || outcomes[1].text.find("collectives between") == std::string::npos));
  }
}
