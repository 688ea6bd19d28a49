#include "acc/launcher/flags.hpp"

#include "acc/base/error.hpp"
#include "acc/plugins/settings_table.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using Words = std::vector<std::string>;

std::string refusal(const Words& words) {
  try {
    static_cast<void>(parse_flags(words));
    return "";
  } catch (const Error& error) {
    CHECK(exit_status(error) == 2);
    return error.what();
  }
}

TEST_CASE("a flag may be spelled with - or _, with = or a blank") {
  for (const Words& words :
       {Words{"--num_processes", "4", "prog"}, Words{"--num-processes", "4", "prog"},
        Words{"--num_processes=4", "prog"}, Words{"--num-processes=4", "prog"}}) {
    const Flags flags = parse_flags(words);
    REQUIRE(flags.find("num_processes") != nullptr);
    CHECK(flags.find("num_processes")->text == "4");
    CHECK(flags.program == "prog");
  }
}

TEST_CASE("everything after the program is the program's") {
  const Flags flags =
      parse_flags(Words{"--cpu", "prog", "--cpu", "--num_processes", "9", "--", "-x"});
  CHECK(flags.program == "prog");
  CHECK(flags.arguments == Words{"--cpu", "--num_processes", "9", "--", "-x"});
  CHECK(flags.own_arguments == Words{"--cpu"});
  CHECK(flags.find("num_processes") == nullptr);
}

TEST_CASE("sub-commands come first, launch is the default") {
  CHECK(parse_flags(Words{"prog"}).command == Command::launch);
  CHECK(parse_flags(Words{"launch", "prog"}).program == "prog");
  CHECK(parse_flags(Words{"explain", "--cpu", "prog"}).command == Command::explain);
  CHECK(parse_flags(Words{"--cpu", "explain"}).program == "explain");
  CHECK(parse_flags(Words{"--help"}).command == Command::help);
  CHECK(parse_flags(Words{"--version"}).command == Command::version);
  CHECK(parse_flags(Words{"prog", "--help"}).command == Command::launch);
}

TEST_CASE("every flag of the table is understood and described") {
  const std::string help = help_text();
  for (const plugins::SettingRow& row : plugins::settings_table()) {
    if (row.flag == plugins::Flag::none) {
      continue;
    }
    const std::string flag = "--" + std::string(row.key);
    CAPTURE(flag);
    CHECK(help.find(flag) != std::string::npos);
    const bool toggle = row.flag == plugins::Flag::toggle;
    const Flags flags = parse_flags(toggle ? Words{flag, "prog"} : Words{flag, "word", "prog"});
    REQUIRE(flags.find(row.key) != nullptr);
    CHECK(flags.find(row.key)->text == (toggle ? "true" : "word"));
    CHECK(flags.program == "prog");
  }
}

TEST_CASE("wrong flags are refused by name") {
  struct Case {
    Words words;
    std::string part;
  };
  for (const auto& [words, part] : {
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
           Case{{"--log_dir", "x", "prog"}, "--log_dir: log files are not supported yet"},
       }) {
    CAPTURE(words);
    CHECK(refusal(words).find(part) != std::string::npos);
  }
}

}  // namespace
}  // namespace acc::launcher
