// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/settings/environment.hpp"
#include "cluster/hostlist.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"

#include <cstdio>

namespace acc::launcher::commands {
namespace {

/// Returns the host lists of the command line, or else the job's. They are not declared as CLI11
/// options, since CLI11 would parse "[1-3]" as a vector of its own syntax.
std::vector<Sourced<std::string>> lists_of(std::span<const std::string> words) {
  std::vector<Sourced<std::string>> lists;
  for (const std::string& word : words) {
    if (word.starts_with("-")) {
      throw Error(Errc::invalid_argument,
                  "acclaunch expand-hosts: unknown flag " + word + "; see --help");
    }
    lists.push_back({word, "list"});
  }
  if (!lists.empty()) {
    return lists;
  }
  const Sourced<std::string> of_job{
      settings::variable(settings::current_environment(), "SLURM_JOB_NODELIST"),
      "SLURM_JOB_NODELIST"};
  if (of_job.value.empty()) {
    throw Error(Errc::invalid_argument, "acclaunch expand-hosts: no list given, and " +
                                            of_job.where + " is not set; see --help");
  }
  return {of_job};
}

}  // namespace

int expand_hosts_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch expand-hosts [LIST...]: expands Slurm host lists such as node[0-3,08-11],login, "
      "one host\nper line, like `scontrol show hostnames`. Without LIST it expands the job's list, "
      "SLURM_JOB_NODELIST.",
      "acclaunch expand-hosts");
  parser.allow_extras();
  parser.parse(arguments);
  std::string text;
  for (const Sourced<std::string>& list : lists_of(parser.remaining())) {
    for (const std::string& host : cluster::expand_hosts(list)) {
      text += host + "\n";
    }
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
