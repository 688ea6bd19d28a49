// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/launcher/command_line.hpp"
#include "acc/launcher/front_end.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "support/errors.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using Words = std::vector<std::string>;

Flags parsed(const Words& words, const FrontEnd& front_end = accelerate_front_end()) {
  return parse_flags(front_end, words);
}

std::string refusal(const Words& words) {
  return acc::test::refusal([&] { parsed(words).faults.raise(); });
}

TEST_CASE("a flag may be spelled with - or _, and its value with = or a space") {
  for (const Words& words :
       {Words{"--num_processes", "4", "prog"}, Words{"--num-processes", "4", "prog"},
        Words{"--num_processes=4", "prog"}, Words{"--num-processes=4", "prog"}}) {
    const Flags flags = parsed(words);
    REQUIRE(flags.find("num_processes"_key) != nullptr);
    CHECK(flags.find("num_processes"_key)->text == "4");
    CHECK(flags.program == "prog");
  }
}

TEST_CASE("everything after the program belongs to the program") {
  const Flags flags = parsed(Words{"--cpu", "prog", "--cpu", "--num_processes", "9", "--", "-x"});
  CHECK(flags.program == "prog");
  CHECK(flags.arguments == Words{"--cpu", "--num_processes", "9", "--", "-x"});
  CHECK(flags.own_arguments == Words{"--cpu"});
  CHECK(flags.find("num_processes"_key) == nullptr);
}

TEST_CASE("-- ends the flags, before the program or after it") {
  for (const Words& words : {Words{"--cpu", "--", "prog", "-x"}, Words{"--cpu", "prog", "--", "-x"},
                             Words{"--cpu", "prog", "-x"}}) {
    CHECK(parsed(words).program == "prog");
    CHECK(parsed(words).arguments == Words{"-x"});
  }
  CHECK(parsed({"--", "prog", "--", "-x"}).arguments == Words{"--", "-x"});
  CHECK(parsed({"prog", "a", "--", "-x"}).arguments == Words{"a", "--", "-x"});
}

TEST_CASE("an empty argument is no program, and neither is the word after it") {
  CHECK(refusal({"--cpu", "", "prog"}) == "empty argument where a flag or PROGRAM is expected");
  CHECK(parsed({"prog", "", "x"}).arguments == Words{"", "x"});
}

TEST_CASE("the first argument selects the command, else the name of the link") {
  struct Case {
    std::string_view called_as;
    Words words;
    std::string_view chosen;
    std::size_t rest;
  };
  for (const auto& [called_as, words, chosen, rest] : {
           Case{"/usr/bin/acclaunch", {"prog"}, "launch", 1},
           Case{"acclaunch", {"launch", "prog"}, "launch", 1},
           Case{"acclaunch", {}, "launch", 0},
           Case{"acclaunch", {"torchrun", "prog"}, "torchrun", 1},
           Case{"acclaunch", {"explain", "--cpu", "prog"}, "explain", 2},
           Case{"acclaunch", {"--cpu", "explain"}, "launch", 2},
           Case{"bin/torchrun", {"explain"}, "torchrun", 1},
           Case{"deepspeed", {"prog"}, "deepspeed", 1},
           Case{"accelerate", {"launch", "prog"}, "launch", 1},
       }) {
    CAPTURE(called_as);
    CAPTURE(words);
    const CommandLine line = read_command_line(called_as, words);
    CHECK((line.sub_command != nullptr ? line.sub_command->name : line.front_end->name) == chosen);
    CHECK(line.arguments.size() == rest);
  }
  CHECK(parsed({"--help"}).wants_help);
  CHECK(parsed({"--version"}).wants_version);
  CHECK_FALSE(parsed({"prog", "--help"}).wants_help);
}

TEST_CASE("a program that is not found may be a misspelled subcommand") {
  CHECK(sub_command_meant(parsed({"convrt-config", "x"})) ==
        "; did you mean the sub-command convert-config?");
  CHECK(sub_command_meant(parsed({"train_gpt"})).empty());
  CHECK(sub_command_meant(parsed({"--cpu", "convrt-config"})).empty());
}

TEST_CASE("every short flag in --help is understood") {
  for (const FrontEnd* front_end :
       {&accelerate_front_end(), &torchrun_front_end(), &deepspeed_front_end()}) {
    for (const settings::SettingRow& row : front_end->table) {
      for (const std::string_view alias : split(row.alias, '|')) {
        if (alias.size() == 1) {
          const Flags flags = parsed({"-" + std::string(alias), "1"}, *front_end);
          CAPTURE(alias);
          CHECK_FALSE(flags.faults.any());
          CHECK(flags.find(row) != nullptr);
        }
      }
    }
  }
}

TEST_CASE("every flag of the table is understood and described") {
  const std::string help = help_text(accelerate_front_end());
  for (const settings::SettingRow& row : settings::settings_table()) {
    if (row.flag == settings::Flag::none) {
      continue;
    }
    const std::string flag = "--" + std::string(row.key);
    CAPTURE(flag);
    CHECK(help.find(flag) != std::string::npos);
    const bool toggle = row.flag != settings::Flag::value;
    const Flags flags = parsed(toggle ? Words{flag, "prog"} : Words{flag, "word", "prog"});
    REQUIRE(flags.find(row) != nullptr);
    CHECK(flags.find(row)->text == (toggle ? "true" : "word"));
    CHECK(flags.program == "prog");
  }
}

TEST_CASE("a toggle that can be denied takes true or false, and no other word") {
  struct Case {
    Words words;
    std::string text;
    std::string program;
  };
  for (const auto& [words, text, program] : {
           Case{{"--same_network", "prog"}, "true", "prog"},
           Case{{"--same_network", "false", "prog"}, "false", "prog"},
           Case{{"--same-network", "True", "prog"}, "True", "prog"},
           Case{{"--same_network=no", "prog"}, "no", "prog"},
           Case{{"--same_network", "no"}, "true", "no"},
       }) {
    const Flags flags = parsed(words);
    CHECK(flags.find("same_network"_key)->text == text);
    CHECK(flags.program == program);
  }
}

TEST_CASE("invalid flags are rejected by name") {
  struct Case {
    Words words;
    std::string part;
  };
  for (const auto& [words, part] : {
           Case{{"--deepspeed_config", "ds.json", "prog"}, "mean --deepspeed_config_file?"},
           Case{{"--num_proceses", "4", "prog"},
                "unknown flag --num_proceses; did you mean --num_processes?"},
           Case{{"--num_proc", "4", "prog"}, "unknown flag --num_proc"},
           Case{{"-z", "prog"}, "unknown flag -z"},
           Case{{"--num_processes"}, "--num_processes needs a value"},
           Case{{"--cpu=yes", "prog"}, "--cpu takes no value, got \"yes\""},
           Case{{"--tpu", "prog"}, "--tpu: TPUs are not supported"},
           Case{{"--tpu_cluster", "prog"}, "TPUs are not supported"},
           Case{{"--use_megatron_lm", "prog"}, "Megatron-LM is not supported"},
           Case{{"--megatron_lm_tp_degree=2", "prog"}, "Megatron-LM is not supported"},
           Case{{"--aws_access_key_id", "x", "prog"}, "SageMaker is not supported"},
       }) {
    CAPTURE(words);
    CHECK(refusal(words).find(part) != std::string::npos);
  }
}

}  // namespace
}  // namespace acc::launcher
