// SPDX-License-Identifier: Apache-2.0
#include "plan/agreed_terms.hpp"

#include "plan_fixture.hpp"

#include <doctest/doctest.h>

#include <map>

namespace acc::launcher::test {
namespace {

std::map<std::string, std::string> agreed(const PlanFixture& fixture,
                                          const std::vector<std::string>& arguments) {
  const auto terms = plan::agreed_terms(fixture.plan(arguments));
  return {terms.begin(), terms.end()};
}

}  // namespace

TEST_CASE("agreed terms: the program, independent of its path and interpreter") {
  PlanFixture fixture;
  fixture.write("bin/python3", "#!/bin/sh\n", true);
  fixture.write("sub/train.py", "");
  fixture.environment["PATH"] = (fixture.folder() / "bin").string();
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"./train", "--lr", "1"}, "train"},
      {{(fixture.folder() / "train").string(), "other"}, "train"},
      {{"sub/train.py", "-m", "x"}, "train.py"},
      {{"--module", "package.train", "x"}, "package.train"},
  };
  for (const auto& [arguments, program] : cases) {
    CAPTURE(program);
    CHECK(agreed(fixture, arguments).at("the program") == program);
    CHECK(agreed(fixture, arguments).at("the device") == "cpu");
  }
}

TEST_CASE("agreed terms: the program's arguments, without what differs between machines") {
  PlanFixture fixture(torchrun_front_end());
  for (const char* interpreter : {"a/python3", "b/python3.12", "b/bash"}) {
    fixture.write(interpreter, "#!/bin/sh\n", true);
  }
  const auto words = [&](const std::vector<std::string>& command) {
    std::vector<std::string> arguments = {"--no-python"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    return agreed(fixture, arguments);
  };
  const std::string in_a = (fixture.folder() / "a/python3").string();
  const std::string in_b = (fixture.folder() / "b/python3.12").string();
  const std::string shell = (fixture.folder() / "b/bash").string();
  const struct {
    std::vector<std::string> command;
    std::string program, arguments;
  } cases[] = {
      {{"./train"}, "train", ""},
      {{"./train", "--lr", "1", "a b"}, "train", "--lr 1 'a b'"},
      {{in_a, "-u", "x/train.py", "--lr", "1"}, "train.py", "--lr 1"},
      {{in_b, "-X", "dev", "y/train.py", "--lr", "1"}, "train.py", "--lr 1"},
      {{in_b, "-m", "package.train", "-c", "1"}, "package.train", "-c 1"},
      {{in_a, "-c", "print(1)", "x"}, "python", "-c 'print(1)' x"},
      {{in_b, "-c", "print(1)", "x"}, "python", "-c 'print(1)' x"},
      {{shell, "-o", "pipefail", "z/run.sh", "4"}, "run.sh", "4"},
      {{shell, "-euo", "pipefail", "--norc", "z/run.sh", "-c"}, "run.sh", "-c"},
      {{in_a, "-Wignore::DeprecationWarning", "z/train.py"}, "train.py", ""},
      {{shell, "-lc", "run 4"}, "bash", "-lc 'run 4'"},
      {{"./train", "--node_rank", "3", "--machine-rank=1", "-local_addr", "10.0.0.1", "4"},
       "train",
       "--node_rank * --machine-rank=* -local_addr * 4"},
  };
  for (const auto& [command, program, arguments] : cases) {
    CAPTURE(arguments);
    CHECK(words(command).at("the program") == program);
    CHECK(words(command).at("the arguments") == arguments);
  }
  const std::string text(5000, 'x');
  const std::string cut = words({"./train", text + "1"}).at("the arguments");
  CHECK(cut.size() == 4096);
  CHECK(cut != words({"./train", text + "2"}).at("the arguments"));
  CHECK_FALSE(agreed(fixture, {"--rdzv-conf", "compare_arguments=false", "--no-python", "./train"})
                  .contains("the arguments"));
}

TEST_CASE("agreed terms: settings in canonical spelling, without local ones") {
  PlanFixture fixture;
  fixture.facts.python_packages = fixture.folder();
  using Words = std::vector<std::string>;
  const auto same = [&](Words a, Words b) {
    a.emplace_back("./train");
    b.emplace_back("./train");
    return agreed(fixture, a) == agreed(fixture, b);
  };
  CHECK(same({"--use_fsdp", "--fsdp_sharding_strategy", "1"},
             {"--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD"}));
  CHECK(same({"--use_fsdp", "--fsdp_offload_params", "True"},
             {"--use_fsdp", "--fsdp_offload_params", "1"}));
  CHECK(same({"--log_dir", "/a", "--num_processes", "2"}, {"--num_processes", "4"}));
  CHECK(same({"--zero_stage", "3"}, {"--zero_stage", "2"}));  // has no effect without DeepSpeed
  CHECK_FALSE(same({"--use_deepspeed", "--zero_stage", "3"}, {"--use_deepspeed"}));
  CHECK_FALSE(same({"--use_fsdp"}, {}));
  CHECK_FALSE(same({"--mixed_precision", "bf16"}, {"--mixed_precision", "fp16"}));
  CHECK_FALSE(same({"--gradient_accumulation_steps", "2"}, {}));
  CHECK(same({"--engine", "torch"}, {}));
  CHECK_FALSE(same({"--engine", "acc"}, {}));
  CHECK_FALSE(same({"--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD"},
                   {"--use_fsdp", "--fsdp_sharding_strategy", "HYBRID_SHARD"}));
}

TEST_CASE("agreed terms: torchrun programs take their settings from variables") {
  PlanFixture fixture(torchrun_front_end());
  const std::vector<std::string> arguments = {"--no-python", "./train"};
  CHECK_FALSE(agreed(fixture, arguments).contains("the strategy"));
  CHECK(agreed(fixture, arguments).at("the program") == "train");
}

}  // namespace acc::launcher::test
