// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

// Programs with mistakes under acclaunch: the error messages.
namespace {

using acc::test::contains;
using acc::test::Program;
using Words = std::vector<std::string>;

Words command_of(const Words& flags, const Words& program) {
  Words all = {std::string(ACC_BIN_DIR) + "/acclaunch", "--cpu"};
  all.insert(all.end(), flags.begin(), flags.end());
  all.push_back(std::string(ACC_BIN_DIR) + "/wrong_program");
  all.insert(all.end(), program.begin(), program.end());
  return all;
}

struct Layout {
  const char* name;
  Words flags;
  std::map<std::string, std::string> variables = {};
};

const Layout kLayouts[] = {
    {"one process", {"--num_processes", "1"}},
    {"two, one copy of the weights", {"--num_processes", "2", "--use_fsdp"}},
    {"two, gathered by copy", {"--num_processes", "2", "--use_fsdp"}, {{"ACC_SHM_GATHER", "copy"}}},
    {"two in 16 bits",
     {"--num_processes", "2", "--use_fsdp", "--fsdp_sharding_strategy", "SHARD_GRAD_OP",
      "--mixed_precision", "bf16"}},
};

/// A sanitizer handles the signal after us, and ends the program with its own status.
bool ends_by_fault(int status) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return status != 0;
#else
  return status == 128 + SIGSEGV;
#endif
}

}  // namespace

TEST_CASE("--debug: a weight written, or used outside of its scope, is an error that names it") {
  struct Row {
    const char* mistake;
    const char* said;
  };
  for (const Layout& layout : kLayouts) {
    for (const Row& row :
         {Row{"write", "parameter 'fc1.weight' of unit 'fc1' was written through its read-only"},
          Row{"late",
              "parameter 'fc1.weight' of unit 'fc1' was used through a pointer that was "
              "kept after its scope had ended"},
          Row{"later",
              "parameter 'fc1.weight' of unit 'fc1' was used through a pointer that was "
              "kept after its scope had ended"}}) {
      CAPTURE(layout.name);
      CAPTURE(row.mistake);
      Words flags = layout.flags;
      flags.emplace_back("--debug");
      Program program(command_of(flags, {row.mistake}), layout.variables);
      const int status = program.wait();
      CAPTURE(program.err());
      CHECK(ends_by_fault(status));
      CHECK(contains(program.err(), "libacc_runtime: rank "));
      CHECK(contains(program.err(), row.said));
    }
    CAPTURE(layout.name);
    auto variables = layout.variables;
    variables["ACC_CHECK"] = "1";
    Program right(command_of(layout.flags, {"none"}), variables);
    CHECK_MESSAGE(right.wait() == 0, right.err());
    CHECK(contains(right.out(), ", accesses checked"));
  }
}

TEST_CASE("mistakes that are detected without --debug are errors with unit and rank") {
  struct Row {
    Words program;
    std::string said;
  };
  for (const Row& row :
       {Row{{"backward", "1"},
            "rank 1: Optimizer::step() refused: unit 'fc1' had 1 forward scope(s) outside "
            "no_grad() and 0 backward scope(s) since the last step"},
        Row{{"gradient", "0"},
            "rank 0: Optimizer::step() refused: the backward scopes of unit 'fc2' asked for no "
            "gradient to write in 1 of 1 micro-step(s)"},
        Row{{"backward"}, "Optimizer::step() refused: unit 'fc1'"},
        Row{{"handle"},
            "unit 'fc1' was asked for a parameter that it does not have: 'fc2.weight' belongs to "
            "unit 'fc2'"},
        Row{{"shape", "1"}, "the ranks declare different models: fc1.weight is ["}}) {
    CAPTURE(row.program[0]);
    Program program(command_of({"--num_processes", "2", "--use_fsdp"}, row.program));
    const int status = program.wait();
    CAPTURE(program.err());
    // The error of the rank at fault, or of a peer that was notified and ended first.
    CHECK((status == 2 || status == 1));
    CHECK(contains(program.err(), row.said));
  }
}

TEST_CASE("the first line of an error does not mention internals of the runtime") {
  Program program(command_of({"--num_processes", "1"}, {"none"}));
  REQUIRE_MESSAGE(program.wait() == 0, program.err());
  CHECK(program.out() == "one process, cpu, precision fp32\n");
}
