#include "commands/commands.hpp"

#include "acc/launcher/sub_command.hpp"

#include <array>

namespace acc::launcher {

std::span<const SubCommand> sub_commands() noexcept {
  static constexpr std::array kCommands = {
      SubCommand{"explain", "what a launch would do, and why; --json", explain_command},
      SubCommand{"config", "asks what a launch shall be and writes its configuration file",
                 config_command},
      SubCommand{"convert-config",
                 "writes an FSDP configuration in DeepSpeed's words, or the reverse",
                 convert_config_command},
      SubCommand{"to-fsdp2", "writes a configuration of FSDP 1 as one of FSDP 2", to_fsdp2_command},
      SubCommand{"estimate-memory", "what a model and its training take of each rank's memory",
                 estimate_memory_command},
      SubCommand{"expand-hosts", "the hosts of a Slurm list such as node[0-3], one a line",
                 expand_hosts_command},
      SubCommand{"env", "what a report of a problem should tell of machine and configuration",
                 env_command},
      SubCommand{"merge-weights", "writes a sharded checkpoint's weights as one file",
                 merge_weights_command},
      SubCommand{"inspect", "what a checkpoint holds, who wrote it; --json", inspect_command},
      SubCommand{"verify", "reads all of a checkpoint and names what is damaged", verify_command},
      SubCommand{"reshard", "cuts a checkpoint for another number of ranks", reshard_command},
      SubCommand{"convert", "writes a checkpoint in another format", convert_command},
      SubCommand{"environment-table", "", environment_table_command},
      SubCommand{"configuration-table", "", configuration_table_command},
  };
  return kCommands;
}

}  // namespace acc::launcher
