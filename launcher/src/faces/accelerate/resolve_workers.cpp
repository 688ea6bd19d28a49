#include "faces/accelerate/resolver.hpp"
#include "plan/machines.hpp"

#include <algorithm>

namespace acc::launcher {

using plugins::Device;
using plugins::Faults;
using plugins::Source;

namespace {

constexpr std::uint16_t kDefaultPort = 29500;  // torchrun's

}  // namespace

void Resolver::place_workers() {
  plan_.num_machines = static_cast<int>(settings_.integer("num_machines"));
  plan_.machine_rank = static_cast<int>(settings_.integer("machine_rank"));
  read_port();
  Faults faults;
  faults.collect([&] { read_num_processes(); });
  faults.collect([&] { check_machines(); });
  faults.raise();
  plan_.local_world_size = plan_.num_processes / plan_.num_machines;
  if (plan_.num_machines > 1) {
    plan_.rendezvous.address = settings_.text("main_process_ip");
  }
}

void Resolver::read_port() {
  plan_.rendezvous.port = kDefaultPort;
  if (settings_.has("main_process_port")) {
    plan_.rendezvous.port = static_cast<std::uint16_t>(settings_.integer("main_process_port"));
    plan_.rendezvous.port_was_given = true;
  }
}

void Resolver::read_num_processes() {
  if (!settings_.has("num_processes")) {
    settings_.set("num_processes", std::to_string(default_num_processes()),
                  {Source::Kind::derived, "GPUs of this machine, else 1"});
  }
  plan_.num_processes = static_cast<int>(settings_.integer("num_processes"));
  if (plan_.num_processes % plan_.num_machines != 0) {
    throw Error(Errc::config, "--num_processes " + std::to_string(plan_.num_processes) +
                                  " is the total and must be a multiple of --num_machines " +
                                  std::to_string(plan_.num_machines));
  }
  if (settings_.boolean("multi_gpu") && plan_.num_processes < 2) {
    throw Error(Errc::config, "--multi_gpu needs --num_processes of at least 2, got 1");
  }
}

int Resolver::default_num_processes() const {
  const bool file_decides = config_ && file_.distributed_type != "NO";
  if (file_decides || plan_.num_machines > 1) {
    throw Error(
        Errc::config,
        "--num_processes is missing, the number of workers over all machines" +
            (config_ ? "; " + config_->path.string() + " does not say it either" : std::string()));
  }
  return config_ || settings_.boolean("use_cpu")
             ? 1
             : std::max(1, static_cast<int>(facts_.visible_gpus.size()));
}

bool Resolver::knows_machine_rank() const {
  const Source::Kind machines = settings_.source("num_machines").kind;
  return settings_.has("machine_rank") && settings_.source("machine_rank").kind >= machines;
}

void Resolver::check_machines() {
  const bool needs_rank = settings_.choice("rdzv_backend") == "static" && !knows_machine_rank();
  if (plan_.num_machines > 1 && (needs_rank || !settings_.has("main_process_ip"))) {
    const std::string address =
        settings_.has("main_process_ip") ? settings_.text("main_process_ip") : facts_.hostname;
    throw Error(Errc::config,
                "--num_machines " + std::to_string(plan_.num_machines) + " needs " +
                    (!needs_rank                        ? "--main_process_ip"
                     : settings_.has("main_process_ip") ? "--machine_rank"
                                                        : "--machine_rank and --main_process_ip") +
                    "; with this machine as machine 0, type" +
                    machines_hint(flags_, plan_.num_machines, address, plan_.rendezvous.port));
  }
  if (plan_.num_machines > 1 && plan_.rendezvous.port == 0) {
    throw Error(Errc::config,
                "--main_process_port 0 lets machine 0 choose, and the others cannot know it; "
                "name a port");
  }
  if (plan_.machine_rank >= plan_.num_machines) {
    throw Error(Errc::config, "machine_rank " + std::to_string(plan_.machine_rank) +
                                  " must be below num_machines " +
                                  std::to_string(plan_.num_machines));
  }
}

void Resolver::choose_device() {
  read_gpu_ids();
  const bool insists = plan_.mode == Mode::multi_gpu || !plan_.gpu_ids.empty();
  const bool asked_for_cpu = cpu_flag() || settings_.boolean("use_cpu");
  if (insists && asked_for_cpu) {
    use_cpu_despite_gpus();
    return;
  }
  if (asked_for_cpu || file_.distributed_type == "MULTI_CPU") {
    return;
  }
  if (worker_gpus_.empty() && insists) {
    throw Error(Errc::device,
                insisting() + " asks for GPUs, but " + no_gpu() + "; take it out, or give --cpu");
  }
  if (worker_gpus_.empty()) {
    if (plan_.mode != Mode::plain) {
      const std::string why = facts_.gpu.devices.empty() ? "no GPU on this machine" : no_gpu();
      notice(why + ": " + (plan_.mode == Mode::fsdp ? "FSDP" : "ZeRO") + " runs on the CPU");
    }
    return;
  }
  check_enough_gpus();
  plan_.device = Device::cuda;
  switch_to_multi_gpu();
}

void Resolver::check_enough_gpus() const {
  const auto gpus = static_cast<int>(worker_gpus_.size());
  const std::string share = plugins::variable(environment_, "ACC_SHARE_GPUS", "0");
  if (gpus >= plan_.local_world_size || plugins::parse_boolean(share).value_or(false)) {
    return;
  }
  throw Error(Errc::device, std::to_string(plan_.local_world_size) +
                                " processes on this machine need as many GPUs, but there " +
                                (gpus == 1 ? "is 1" : "are " + std::to_string(gpus)) +
                                "; lower --num_processes, let them share with ACC_SHARE_GPUS=1, "
                                "or give --cpu");
}

std::string Resolver::no_gpu() const {
  if (!facts_.gpu.devices.empty()) {
    return "CUDA_VISIBLE_DEVICES=" + plugins::variable(environment_, "CUDA_VISIBLE_DEVICES") +
           " leaves none of this machine's " + std::to_string(facts_.gpu.devices.size());
  }
  return facts_.gpu.driver_version.empty()
             ? "there is none on this machine: no NVIDIA driver is installed"
             : "there is none on this machine, though NVIDIA's driver " +
                   facts_.gpu.driver_version + " is installed";
}

void Resolver::read_gpu_ids() {
  worker_gpus_ = facts_.visible_gpus;
  const std::string& text = settings_.text("gpu_ids");
  if (text.empty() || plugins::lower(text) == "all") {
    return;
  }
  worker_gpus_.clear();
  plan_.gpu_ids = settings_.list("gpu_ids");
  if (cpu_flag() || settings_.boolean("use_cpu")) {
    return;
  }
  const std::string where = settings_.source("gpu_ids").where;
  if (facts_.gpu.devices.empty()) {
    throw Error(Errc::device, where + ": gpu_ids " + text + " asks for GPUs, but " + no_gpu() +
                                  "; take it out, or give --cpu");
  }
  for (const std::string& id : plan_.gpu_ids) {
    const auto gpu = find_gpu(id, facts_.gpu.devices);
    if (!gpu) {
      throw Error(Errc::config, where + ": " + unknown_gpu(id));
    }
    if (std::ranges::find(worker_gpus_, *gpu) != worker_gpus_.end()) {
      throw Error(Errc::config, where + ": gpu_ids " + text + " names GPU " + std::to_string(*gpu) +
                                    " twice; CUDA would then show none");
    }
    worker_gpus_.push_back(*gpu);
  }
}

std::string Resolver::unknown_gpu(const std::string& id) const {
  const auto& devices = facts_.gpu.devices;
  const bool by_name = id.starts_with("GPU-") || id.starts_with("MIG-");
  if (!by_name && !plugins::parse_integer(id)) {
    return "gpu_ids must be all, or numbers or UUIDs joined by commas, got \"" +
           settings_.text("gpu_ids") + "\"";
  }
  std::string there;
  for (std::size_t i = 0; by_name && i < devices.size(); ++i) {
    there += (i == 0 ? ": " : ", ") + devices[i].uuid;
    for (const std::string& partition : devices[i].partitions) {
      there += ", " + partition;
    }
  }
  return "gpu_ids names GPU " + id + ", but this machine has " + std::to_string(devices.size()) +
         (by_name ? there : ", numbered from 0");
}

void Resolver::place_on_cores() {
  const bool on_gpus = plan_.device == Device::cuda;
  Placements placements = acc::launcher::place_workers(
      plan_.local_world_size, on_gpus ? worker_gpus_ : std::vector<int>{},
      settings_.boolean("enable_cpu_affinity"), facts_);
  plan_.gpus = facts_.gpu;
  plan_.placements = std::move(placements.workers);
  for (std::string& line : placements.notices) {
    notice(std::move(line));
  }
}

void Resolver::use_cpu_despite_gpus() {
  if (flags_.find("gpu_ids") != nullptr && cpu_flag()) {
    throw Error(Errc::config, "--gpu_ids and --cpu exclude each other; choose one");
  }
  if (!cpu_flag()) {
    throw Error(Errc::config, settings_.source("use_cpu").where + ": use_cpu contradicts " +
                                  insisting() + "; take one out");
  }
  notice("--cpu: " + insisting() + " is not used");
  plan_.gpu_ids.clear();
  if (plan_.mode == Mode::multi_gpu) {
    plan_.mode = Mode::plain;
  }
}

std::string Resolver::insisting() const {
  if (!plan_.gpu_ids.empty()) {
    return "gpu_ids " + settings_.text("gpu_ids");
  }
  return settings_.boolean("multi_gpu") ? "--multi_gpu" : "distributed_type MULTI_GPU";
}

void Resolver::switch_to_multi_gpu() {
  if (plan_.mode == Mode::plain && !config_ && facts_.visible_gpus.size() > 1 &&
      plan_.num_processes > 1) {
    plan_.mode = Mode::multi_gpu;
  }
}

}  // namespace acc::launcher
