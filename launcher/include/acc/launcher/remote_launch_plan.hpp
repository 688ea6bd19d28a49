// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/environment.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// One machine to start a launcher on.
struct RemoteMachine {
  std::string name;  ///< destination for ssh: `[USER@]HOST`, or an alias in ssh's configuration
  settings::Environment variables;  ///< variables of this machine only, such as its machine rank
};

/// Plan of a job whose machines are started from this process. acclaunch runs on each machine and
/// receives control messages from this process on its standard input
/// (`remote_launch/control_message.hpp`).
struct RemoteLaunchPlan {
  enum class Means {
    ssh,   ///< one OpenSSH client per machine
    pdsh,  ///< one pdsh for all machines. It carries no control messages: a signal to it closes the
           ///< connections, which ends the job.
    srun,  ///< one srun in the Slurm job that this process belongs to; machines have no variables
  };

  Means means = Means::ssh;
  std::vector<RemoteMachine> machines;  ///< by machine rank
  std::vector<std::string> arguments;   ///< for acclaunch on each machine, front end's name first
  std::string executable;               ///< path of acclaunch here; the fallback there is PATH
  std::string working_directory;        ///< the same path is used on each machine
  /// Variables for all machines, in addition to the remote environment and the part of this
  /// process's environment that is passed on (`remote_launch/carried_environment.hpp`).
  settings::Environment environment;
  std::vector<std::string> client_options;  ///< options of ssh, pdsh or srun, before all others
  int ssh_port = 0;                         ///< 0: the port of ssh's configuration
  std::string run_id;
};

}  // namespace acc::launcher
