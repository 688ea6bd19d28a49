// SPDX-License-Identifier: Apache-2.0
#include "commands/commands.hpp"

#include "acc/launcher/sub_command.hpp"

#include <array>

namespace acc::launcher {

// The order is that of --help. The commands without a help text generate pages of docs/ and
// manual pages, or are called by completion scripts.
std::span<const SubCommand> sub_commands() noexcept {
  static constexpr std::array kCommands = {
      SubCommand{"explain", "shows what a launch would do, and why (--json: as JSON)",
                 commands::explain_command},
      SubCommand{"config", "asks questions and writes a configuration file",
                 commands::config_command},
      SubCommand{"convert-config",
                 "converts a configuration from FSDP to DeepSpeed, or the reverse",
                 commands::convert_config_command},
      SubCommand{"to-fsdp2", "converts a configuration from FSDP 1 to FSDP 2",
                 commands::to_fsdp2_command},
      SubCommand{"estimate-memory", "estimates the memory per rank for a model and its training",
                 commands::estimate_memory_command},
      SubCommand{"expand-hosts", "expands a Slurm list such as node[0-3], one host per line",
                 commands::expand_hosts_command},
      SubCommand{"env", "prints version, machine and configuration, for a bug report",
                 commands::env_command},
      SubCommand{"merge-weights", "merges a sharded checkpoint's weights into one file",
                 commands::merge_weights_command},
      SubCommand{"inspect", "lists a checkpoint's contents and who wrote it (--json: as JSON)",
                 commands::inspect_command},
      SubCommand{"verify", "reads a whole checkpoint and lists what is damaged",
                 commands::verify_command},
      SubCommand{"reshard", "rewrites a checkpoint for another number of ranks",
                 commands::reshard_command},
      SubCommand{"convert", "converts a checkpoint to another format", commands::convert_command},
      SubCommand{"top", "shows jobs and their ranks in a terminal, live (--once: as a table)",
                 commands::top_command},
      SubCommand{"status", "prints what the ranks of running jobs do, and which they wait for",
                 commands::status_command},
      SubCommand{"stacks", "prints the stacks of running workers", commands::stacks_command},
      SubCommand{"dump", "writes the last collectives of running ranks, for torchfrtrace",
                 commands::dump_command},
      SubCommand{"data", "proves from records that a training has used each sample once",
                 commands::data_command},
      SubCommand{"plot", "draws metrics files as one HTML page", commands::plot_command},
      SubCommand{"trace", "merges timelines of machines, or says where the time went",
                 commands::trace_command},
      SubCommand{"compare", "says where two configurations of a training part, and why",
                 commands::compare_command},
      SubCommand{"completion", "prints the completion script of bash, zsh or fish",
                 commands::completion_command},
      SubCommand{"complete-words", "", commands::complete_words_command},
      SubCommand{"manual-page", "", commands::manual_page_command},
      SubCommand{"environment-table", "", commands::environment_table_command},
      SubCommand{"configuration-table", "", commands::configuration_table_command},
  };
  return kCommands;
}

}  // namespace acc::launcher
