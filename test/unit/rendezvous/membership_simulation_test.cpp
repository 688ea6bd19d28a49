// SPDX-License-Identifier: Apache-2.0
#include "rounds_simulation.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <optional>

namespace acc::rendezvous::rounds {
namespace {

using test::Simulation;
using test::Violation;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

struct Outcome {
  std::uint64_t events = 0;
  std::uint64_t rounds = 0;
  std::uint64_t crashes = 0;
  std::uint64_t takeovers = 0;
  std::uint64_t refused = 0;
  std::optional<std::string> violation;
  std::vector<std::string> log;
};

Outcome simulate(std::uint64_t seed, int num_machines, Simulation::Mode mode, bool keep_log) {
  Simulation simulation(seed, num_machines, mode);
  if (keep_log) {
    simulation.keep_log();
  }
  Outcome outcome;
  try {
    simulation.run();
  } catch (const Violation& violation) {
    outcome.violation = violation.what();
  }
  outcome.events = simulation.num_events();
  outcome.rounds = simulation.num_rounds();
  outcome.crashes = simulation.num_crashes();
  outcome.takeovers = simulation.num_takeovers();
  outcome.refused = simulation.num_refused();
  outcome.log = simulation.log();
  return outcome;
}

/// Number of machines for a seed. Mostly few: an error among many machines also occurs among few.
int machines_of(std::uint64_t seed) {
  if (const auto machines = setting("ACC_SIMULATION_MACHINES", 0); machines > 0) {
    return static_cast<int>(machines);
  }
  return seed % 50 == 0 ? 64 : 1 + static_cast<int>(seed % 8);
}

/// Looks for a shorter simulation with a violation, and fails with its log.
void tell(std::uint64_t seed, Simulation::Mode mode) {
  std::uint64_t shortest = seed;
  std::uint64_t fewest = simulate(seed, machines_of(seed), mode, false).events;
  const std::uint64_t end = machines_of(seed) > 100 ? seed : seed + 2000;
  for (std::uint64_t other = seed + 1; other < end; ++other) {
    const Outcome outcome = simulate(other, machines_of(other), mode, false);
    if (outcome.violation && outcome.events < fewest) {
      shortest = other;
      fewest = outcome.events;
    }
  }
  const Outcome outcome = simulate(shortest, machines_of(shortest), mode, true);
  std::string story;
  for (const std::string& line : outcome.log) {
    story += line + "\n";
  }
  FAIL("seed " << shortest << ": " << *outcome.violation << "\n" << story);
}

// ACC_SIMULATION_EVENTS, ACC_SIMULATION_SEED and ACC_SIMULATION_MACHINES set the number of events,
// the first seed and the number of machines.
void check_all(Simulation::Mode mode) {
  const std::uint64_t first = setting("ACC_SIMULATION_SEED", 1);
  const std::uint64_t wanted = setting("ACC_SIMULATION_EVENTS", 1'000'000);
  std::uint64_t events = 0;
  std::uint64_t rounds = 0;
  std::uint64_t crashes = 0;
  std::uint64_t takeovers = 0;
  std::uint64_t refused = 0;
  std::uint64_t seed = first;
  for (; events < wanted; ++seed) {
    const Outcome outcome = simulate(seed, machines_of(seed), mode, false);
    events += outcome.events;
    rounds += outcome.rounds;
    crashes += outcome.crashes;
    takeovers += outcome.takeovers;
    refused += outcome.refused;
    if (outcome.violation) {
      tell(seed, mode);
    }
  }
  MESSAGE(fmt::format(
      "{} events, {} rounds, {} ends of a server, {} of them take-overs, {} machines refused while "
      "it drained, in {} worlds, seeds {} to {}",
      events, rounds, crashes, takeovers, refused, seed - first, first, seed - 1));
  CHECK(rounds > 0);
  CHECK(refused > 0);
  CHECK((takeovers > 0 && crashes > takeovers) == (mode == Simulation::Mode::recovers));
}

TEST_CASE("simulation: rounds are complete and no machine is forgotten") {
  check_all(Simulation::Mode::forgets);
}

TEST_CASE("simulation: a server that is killed at any event recovers its rounds from its log") {
  check_all(Simulation::Mode::recovers);
}

TEST_CASE("simulation: a server that is not fenced off is found out") {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 400 && found == 0; ++seed) {
    found += simulate(seed, machines_of(seed), Simulation::Mode::unfenced, false).violation ? 1 : 0;
  }
  CHECK(found > 0);
}

}  // namespace
}  // namespace acc::rendezvous::rounds
