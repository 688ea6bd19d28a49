// SPDX-License-Identifier: Apache-2.0
#include "accelerate_cli/commands_of_others.hpp"

#include "acc/base/variables.hpp"
#include "host/command_output.hpp"
#include "host/own_variables.hpp"

namespace acc::launcher::accelerate_cli {

// The flags differ between MPI implementations, which `mpirun --version` identifies.
std::vector<std::string> mpirun_command(const AccelerateDraft& draft, const Workers& workers,
                                        const std::vector<std::string>& program) {
  auto mpirun = plan::find_in_path("mpirun", draft.environment, draft.facts.working_directory);
  if (!mpirun) {
    mpirun = plan::find_in_path("mpiexec", draft.environment, draft.facts.working_directory);
  }
  if (!mpirun) {
    throw Error(Errc::not_found, workers.mpirun_hosts->where +
                                     " needs mpirun or mpiexec, but PATH has neither; install an "
                                     "MPI implementation, or remove the setting");
  }
  const std::string version = host::command_output({mpirun->string(), "--version"}).value_or("");
  const bool is_open_mpi = version.find("Open MPI") != std::string::npos;
  const std::string local = std::to_string(workers.num_processes / workers.num_machines);
  const std::string all = std::to_string(workers.num_processes);
  const std::string& hosts = workers.mpirun_hosts->value;
  std::vector<std::string> command = {mpirun->string()};
  if (is_open_mpi) {
    command.insert(command.end(),
                   {"--hostfile", hosts, "--npernode", local, "-n", all, "--bind-to", "socket"});
    const bool records = !host::value_of(draft.environment, host::variables.record).empty();
    const bool has_engine = !draft.keeps_engine();
    const bool has_order = draft.settings.choice("data_order"_key) != "torch";
    std::vector<host::OwnVariable> passed_on;  // else other machines would not load our package
    if (has_engine) {
      passed_on.push_back(host::variables.engine);
    }
    if (has_order) {
      passed_on.push_back({kDataOrderVariable, ""});
    }
    if (has_engine || has_order || records) {
      passed_on.push_back(host::variables.python_path);
    }
    if (records) {
      passed_on.insert(passed_on.end(), {host::variables.record, host::variables.record_steps,
                                         host::variables.record_random});
    }
    for (const auto& variable : passed_on) {
      command.insert(command.end(), {"-x", std::string(variable.name)});
    }
  } else {  // Intel MPI, MVAPICH: pass on all variables
    command.insert(command.end(), {"-f", hosts, "-ppn", local, "-n", all});
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::vector<std::string> deepspeed_command(const AccelerateDraft& draft, const Workers& workers,
                                           plan::ProgramKind kind) {
  const auto tool =
      plan::find_in_path("deepspeed", draft.environment, draft.facts.working_directory);
  if (!tool) {
    throw Error(Errc::not_found,
                "several machines with --" + mode_key(workers.mode).text() +
                    " are started by the deepspeed command, which "
                    "is not in PATH; start acclaunch on every machine instead, with "
                    "--deepspeed_multinode_launcher standard");
  }
  const auto text = [&](settings::SettingKey key, const std::string& fallback) {
    return draft.settings.has(key) ? draft.settings.text(key) : fallback;
  };
  const std::string launcher = text("deepspeed_multinode_launcher"_key, "pdsh");
  std::vector<std::string> command = {tool->string(), "--hostfile",
                                      text("deepspeed_hostfile"_key, "None")};
  const auto add = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  launcher == "nossh" ? add({"--node_rank", std::to_string(workers.machine_rank), "--no_ssh"})
                      : add({"--no_local_rank", "--launcher", launcher});
  if (draft.settings.has("deepspeed_exclusion_filter"_key)) {
    add({"--exclude", draft.settings.text("deepspeed_exclusion_filter"_key)});
  } else if (draft.settings.has("deepspeed_inclusion_filter"_key)) {
    add({"--include", draft.settings.text("deepspeed_inclusion_filter"_key)});
  } else {
    add({"--num_gpus", std::to_string(workers.num_processes / workers.num_machines)});
  }
  if (!workers.main.given_by.empty()) {
    add({"--master_addr", workers.main.host});
  }
  add({"--master_port", std::to_string(workers.main.port)});
  plan::check_program(draft.flags, kind);
  if (kind.module || kind.no_python) {
    add({kind.module ? "--module" : "--no_python"});
  }
  if (!draft.flags.program.empty()) {
    add({draft.flags.program});
  }
  add(draft.flags.arguments);
  return command;
}

}  // namespace acc::launcher::accelerate_cli
