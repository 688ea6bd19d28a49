#include "faces/accelerate/resolver.hpp"
#include "host/command_output.hpp"

namespace acc::launcher {

void Resolver::choose_command() {
  switch (starter_) {
    case Starter::ranks:
    case Starter::one_process: plan_.command = program(); break;
    case Starter::mpirun: plan_.command = mpirun_command(); break;
    case Starter::deepspeed: plan_.command = deepspeed_command(); break;
  }
}

ProgramKind Resolver::program_kind() const {
  return {.module = settings_.boolean("module"),
          .no_python = settings_.boolean("no_python"),
          .only_binaries_without_python = !conduct_.starts_executables,
          .unbuffered = starter_ == Starter::ranks};
}

std::vector<std::string> Resolver::program() const {
  return program_command(flags_, program_kind(), environment_, facts_);
}

std::vector<std::string> Resolver::mpirun_command() const {
  auto mpirun = find_in_path("mpirun", environment_, facts_);
  if (!mpirun) {
    mpirun = find_in_path("mpiexec", environment_, facts_);
  }
  if (!mpirun) {
    throw Error(Errc::not_found, place("mpirun_hostfile") +
                                     " needs mpirun or mpiexec, and PATH has neither; install an "
                                     "MPI, or take it out");
  }
  const std::string version = command_output({mpirun->string(), "--version"}).value_or("");
  const bool is_open_mpi = version.find("Open MPI") != std::string::npos;
  const std::string local = std::to_string(num_processes_ / num_machines_);
  const std::string all = std::to_string(num_processes_);
  const std::string& hosts = settings_.text("mpirun_hostfile");
  std::vector<std::string> command = {mpirun->string()};
  if (is_open_mpi) {
    command.insert(command.end(),
                   {"--hostfile", hosts, "--npernode", local, "-n", all, "--bind-to", "socket"});
  } else {  // Intel MPI, MVAPICH
    command.insert(command.end(), {"-f", hosts, "-ppn", local, "-n", all});
  }
  const std::vector<std::string> inner = program();
  command.insert(command.end(), inner.begin(), inner.end());
  return command;
}

std::vector<std::string> Resolver::deepspeed_command() const {
  const auto tool = find_in_path("deepspeed", environment_, facts_);
  if (!tool) {
    throw Error(Errc::not_found,
                "several machines with --use_deepspeed are started by the deepspeed command, which "
                "is not in PATH; start acclaunch on every machine instead, with "
                "--deepspeed_multinode_launcher standard");
  }
  const auto text = [&](std::string_view key, const std::string& fallback) {
    return settings_.has(key) ? settings_.text(key) : fallback;
  };
  const std::string launcher = text("deepspeed_multinode_launcher", "pdsh");
  std::vector<std::string> command = {tool->string(), "--hostfile",
                                      text("deepspeed_hostfile", "None")};
  const auto add = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  launcher == "nossh"
      ? add({"--node_rank", std::to_string(settings_.integer("machine_rank")), "--no_ssh"})
      : add({"--no_local_rank", "--launcher", launcher});
  if (settings_.has("deepspeed_exclusion_filter")) {
    add({"--exclude", settings_.text("deepspeed_exclusion_filter")});
  } else if (settings_.has("deepspeed_inclusion_filter")) {
    add({"--include", settings_.text("deepspeed_inclusion_filter")});
  } else {
    add({"--num_gpus", std::to_string(num_processes_ / num_machines_)});
  }
  if (settings_.has("main_process_ip")) {
    add({"--master_addr", settings_.text("main_process_ip")});
  }
  add({"--master_port", std::to_string(plan_.rendezvous.port)});
  check_program(flags_, program_kind());
  if (settings_.boolean("module") || settings_.boolean("no_python")) {
    add({settings_.boolean("module") ? "--module" : "--no_python"});
  }
  if (!flags_.program.empty()) {
    add({flags_.program});
  }
  add(flags_.arguments);
  return command;
}

/// The deepspeed command hands its other machines what this file says.
void Resolver::plan_deepspeed_environment() {
  if (starter_ != Starter::deepspeed) {
    return;
  }
  plugins::Environment whole = environment_;
  for (const auto& [name, value] : plan_.environment) {
    whole[name] = value;
  }
  std::string left_out;
  std::string text;
  for (const auto& [name, value] : whole) {
    if ((name + value).find_first_of(" ;\n<>") != std::string::npos) {
      left_out += (left_out.empty() ? "" : ", ") + name;
    } else if (!value.empty()) {
      text += name + "=" + value + "\n";
    }
  }
  const std::string file = plugins::variable(environment_, "DS_ENV_FILE", ".deepspeed_env");
  plan_.appended_file = {(facts_.working_directory / file).string(), text};
  if (!left_out.empty()) {
    notice("variables that " + file + " cannot carry to other machines: " + left_out);
  }
}

}  // namespace acc::launcher
