#pragma once

#include "acc/plugins/environment.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// One machine that the job is to be started on.
struct StartMachine {
  std::string name;  ///< as ssh understands it: `[USER@]HOST`, an alias of its configuration too
  plugins::Environment variables;  ///< its own: machine rank, its number of workers
};

/// A job whose machines are started from here: acclaunch itself runs on each of them and hears of
/// this process through its standard input (`start/control_message.hpp`).
struct StartPlan {
  enum class Means {
    ssh,   ///< an OpenSSH client for each machine
    pdsh,  ///< one pdsh for all; it carries no control messages, so signals end the connection
    srun,  ///< one srun of the Slurm job that this process belongs to; machines have no variables
  };

  Means means = Means::ssh;
  std::vector<StartMachine> machines;  ///< by machine rank
  std::vector<std::string> arguments;  ///< of acclaunch on each machine, the face's name first
  std::string executable;              ///< acclaunch as it lies here; else PATH there is asked
  std::string working_directory;       ///< there too
  /// For all machines, besides what is there and what goes along of this process's
  /// (`start/carried_environment.hpp`).
  plugins::Environment environment;
  std::vector<std::string> client_options;  ///< of ssh, pdsh or srun, before all others
  int ssh_port = 0;                         ///< 0: as ssh's configuration says
  std::string run_id;
};

}  // namespace acc::launcher
