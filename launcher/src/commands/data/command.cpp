// SPDX-License-Identifier: Apache-2.0
// acclaunch data check: proves from a record that a training has used each sample once
// (docs/data.md).
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "commands/commands.hpp"
#include "commands/data/record.hpp"
#include "commands/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace acc::launcher::commands {
namespace {

constexpr std::size_t kShown = 10;  ///< problems of one order

}  // namespace

int data_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch data check DIR...: proves from the records of a training (--data_record DIR) that "
      "each\nsample of an epoch was used once in the updates that were kept, or names the first "
      "samples that were\nlost or repeated. Exit status: 0 proven, 1 not, 2 damaged records.",
      "acclaunch data");
  std::string action;
  std::vector<std::string> folders;
  parser.add_option("action", action, "what to do").required().check_member({"check"});
  parser.add_option("folders", folders, "folders of records, of all machines").required();
  parser.parse(arguments);
  std::vector<std::string> remarks;
  auto verdicts = data::check(data::read_records(folders, remarks));
  for (const std::string& remark : remarks) {
    notice(Component::launcher, LogLevel::info, "data: ", remark);
  }
  bool is_proven = true;
  for (const auto& [name, verdict] : verdicts) {
    const std::string head = name.empty() ? "" : printable(name) + ": ";
    for (const std::string& finding : verdict.findings) {
      std::printf("%s%s\n", head.c_str(), finding.c_str());
    }
    const std::size_t shown = std::min(kShown, verdict.problems.size());
    for (std::size_t i = 0; i < shown; ++i) {
      std::printf("%snot proven: %s\n", head.c_str(), verdict.problems[i].c_str());
    }
    if (verdict.problems.size() > shown) {
      std::printf("%snot proven: %zu more problems\n", head.c_str(),
                  verdict.problems.size() - shown);
    }
    if (verdict.problems.empty()) {
      std::printf("%sproven: no sample was lost or repeated\n", head.c_str());
    }
    is_proven = is_proven && verdict.problems.empty();
  }
  return is_proven ? 0 : 1;
}

}  // namespace acc::launcher::commands
