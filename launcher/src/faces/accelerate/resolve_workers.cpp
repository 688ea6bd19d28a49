#include "faces/accelerate/resolver.hpp"
#include "plan/machines.hpp"

#include <algorithm>

namespace acc::launcher {

using plugins::Faults;
using plugins::Source;

namespace {

constexpr std::uint16_t kDefaultPort = 29500;  // torchrun's

}  // namespace

void Resolver::place_workers() {
  num_machines_ = static_cast<int>(settings_.integer("num_machines"));
  const bool ignores_rank = num_machines_ == 1 && !conduct_.checks_counts;
  plan_.machine_rank = ignores_rank ? 0 : static_cast<int>(settings_.integer("machine_rank"));
  read_port();
  read_num_processes();
  choose_starter();
  Faults faults;
  faults.collect([&] { check_machines(); });
  faults.collect([&] { split_processes(); });
  faults.raise();
}

void Resolver::read_port() {
  plan_.rendezvous.port = kDefaultPort;
  if (settings_.has("main_process_port")) {
    plan_.rendezvous.port = static_cast<std::uint16_t>(settings_.integer("main_process_port"));
    plan_.rendezvous.port_was_given = conduct_.keeps_given_port;
  }
}

void Resolver::read_num_processes() {
  const bool given = settings_.has("num_processes");
  num_processes_ =
      given ? static_cast<int>(settings_.integer("num_processes")) : default_num_processes();
  if (!given) {
    settings_.set("num_processes", std::to_string(std::max(1, num_processes_)),
                  {Source::Kind::derived, "GPUs of this machine, else 1"});
  }
  const bool alone = settings_.boolean("multi_gpu") && num_processes_ < 2;
  if (alone && (given || !conduct_.modes_run_without_gpus)) {
    throw Error(Errc::config, "--multi_gpu needs --num_processes of at least 2, got " +
                                  std::to_string(num_processes_));
  }
  if (num_processes_ < 1 && plan_.mode != Mode::plain) {
    throw Error(Errc::config, "--num_processes is missing, and without GPUs there is no default");
  }
}

int Resolver::default_num_processes() const {
  const bool uneven = settings_.has("num_local_processes");
  if (uneven && num_machines_ == 1) {
    return static_cast<int>(settings_.integer("num_local_processes"));
  }
  const bool file_decides = config_ && file_.distributed_type != "NO";
  if (file_decides || uneven || (num_machines_ > 1 && conduct_.checks_counts)) {
    if (file_.faulty_keys.contains("num_processes") ||
        (config_ && file_.distributed_type.empty())) {
      return num_machines_;  // that fault is known
    }
    throw Error(
        Errc::config,
        "--num_processes is missing, the number of workers over all machines" +
            (config_ ? "; " + config_->path.string() + " does not say it either" : std::string()));
  }
  return config_ ? 1 : gpus_or_one();
}

int Resolver::gpus_or_one() const {
  const auto gpus = static_cast<int>(facts_.visible_gpus.size());
  if (!conduct_.modes_run_without_gpus) {
    return gpus;
  }
  return settings_.boolean("use_cpu") ? 1 : std::max(1, gpus);
}

void Resolver::choose_starter() {
  const bool several = num_processes_ > 1 || num_machines_ > 1;
  if (plan_.mode == Mode::plain && !config_ && !cpu_flag() && facts_.visible_gpus.size() > 1 &&
      num_processes_ > 1) {
    plan_.mode = Mode::multi_gpu;  // Accelerate's own default without a file and without a mode
  }
  if (plan_.mode == Mode::plain && settings_.has("mpirun_hostfile")) {
    starter_ = Starter::mpirun;
  } else if (plan_.mode == Mode::plain && (!several || !conduct_.cpu_is_a_device)) {
    starter_ = Starter::one_process;
  } else if (plan_.mode == Mode::deepspeed && num_machines_ > 1 && wants_deepspeed_command()) {
    starter_ = Starter::deepspeed;
  }
}

bool Resolver::wants_deepspeed_command() const {
  if (settings_.has("deepspeed_multinode_launcher")) {
    return settings_.choice("deepspeed_multinode_launcher") != "standard";
  }
  return !conduct_.needs_no_deepspeed || settings_.has("deepspeed_hostfile") ||
         settings_.has("deepspeed_inclusion_filter") || settings_.has("deepspeed_exclusion_filter");
}

void Resolver::split_processes() {
  using Backend = RendezvousPlan::Backend;
  if (starter_ != Starter::ranks) {
    plan_.identity = Identity::none;
    plan_.rendezvous.backend = Backend::none;
    plan_.machine_rank = 0;
    return;
  }
  plan_.num_machines = num_machines_;
  plan_.num_processes = num_processes_;
  if (num_machines_ > 1) {
    plan_.rendezvous.address = settings_.text("main_process_ip");
  }
  if (settings_.has("num_local_processes")) {
    split_by_hand();
    return;
  }
  plan_.local_world_size = num_processes_ / num_machines_;
  const bool even = num_processes_ % num_machines_ == 0;
  if (plan_.local_world_size < 1 || (!even && conduct_.checks_counts)) {
    throw Error(Errc::config, place("num_processes") + " " + std::to_string(num_processes_) +
                                  " is the total and must be a multiple of " +
                                  place("num_machines") + " " + std::to_string(num_machines_) +
                                  "; where machines differ, say on each how many it has with "
                                  "--num_local_processes");
  }
  plan_.num_processes = plan_.local_world_size * num_machines_;
}

void Resolver::split_by_hand() {
  plan_.local_world_size = static_cast<int>(settings_.integer("num_local_processes"));
  const int others = num_processes_ - plan_.local_world_size;
  if (num_machines_ == 1 ? others != 0 : others < num_machines_ - 1) {
    throw Error(Errc::config,
                "--num_local_processes " + std::to_string(plan_.local_world_size) +
                    " does not fit " + place("num_processes") + " " +
                    std::to_string(num_processes_) + ", the total of " +
                    std::to_string(num_machines_) +
                    (num_machines_ == 1 ? " machine" : " machines with at least one each"));
  }
}

bool Resolver::knows_machine_rank() const {
  const Source::Kind machines = settings_.source("num_machines").kind;
  return settings_.has("machine_rank") &&
         (!conduct_.checks_counts || settings_.source("machine_rank").kind >= machines);
}

void Resolver::check_machines() const {
  if (num_machines_ == 1) {
    if (starter_ == Starter::ranks && plan_.machine_rank > 0) {
      throw Error(Errc::config, place("machine_rank") + " " + std::to_string(plan_.machine_rank) +
                                    " must be below " + place("num_machines") + " 1");
    }
    return;
  }
  if (starter_ == Starter::ranks) {
    check_address_of_ranks();
  } else if (starter_ != Starter::deepspeed) {
    check_address_of_one_process();
  }
}

void Resolver::check_address_of_ranks() const {
  Faults faults;
  const bool needs_rank = settings_.choice("rdzv_backend") == "static" && !knows_machine_rank();
  if (needs_rank || !settings_.has("main_process_ip")) {
    const std::string address =
        settings_.has("main_process_ip") ? settings_.text("main_process_ip") : facts_.hostname;
    faults.add(place("num_machines") + " " + std::to_string(num_machines_) + " needs " +
               (!needs_rank                        ? "--main_process_ip"
                : settings_.has("main_process_ip") ? "--machine_rank"
                                                   : "--machine_rank and --main_process_ip") +
               "; with this machine as machine 0, type" +
               machines_hint(flags_, num_machines_, address, plan_.rendezvous.port));
  }
  if (plan_.rendezvous.port == 0) {
    faults.add(
        "--main_process_port 0 lets machine 0 choose, and the others cannot know it; "
        "name a port");
  }
  if (plan_.machine_rank >= num_machines_) {
    faults.add(place("machine_rank") + " " + std::to_string(plan_.machine_rank) +
               " must be below " + place("num_machines") + " " + std::to_string(num_machines_));
  }
  faults.raise();
}

void Resolver::check_address_of_one_process() const {
  for (const std::string key : {"main_process_ip", "main_process_port"}) {
    if (!settings_.has(key)) {
      throw Error(Errc::config, place("num_machines") + " " + std::to_string(num_machines_) +
                                    " needs --" + key + ", where the processes meet");
    }
  }
}

}  // namespace acc::launcher
