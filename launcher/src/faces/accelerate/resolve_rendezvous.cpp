#include "faces/accelerate/resolver.hpp"
#include "plan/torchrun_values.hpp"

namespace acc::launcher {

using plugins::Faults;
using plugins::Source;

void Resolver::read_rendezvous() {
  using Backend = RendezvousPlan::Backend;
  RendezvousPlan& rendezvous = plan_.rendezvous;
  const bool meets = plan_.num_machines > 1 && settings_.choice("rdzv_backend") == "c10d";
  if (plan_.identity != Identity::none) {
    rendezvous.backend = meets ? Backend::c10d : Backend::fixed;
  }
  rendezvous.min_machines = plan_.num_machines;
  rendezvous.run_id = torchrun_default("RDZV_ID").text;
  rendezvous.run_id = rendezvous.run_id.empty() ? "none" : rendezvous.run_id;
  rendezvous.local_address = torchrun_default("LOCAL_ADDR").text;
  plan_.role = settings_.text("role");
  plan_.max_restarts = static_cast<int>(settings_.integer("max_restarts"));
  Faults faults;
  faults.collect([&] { read_ending(); });
  faults.collect([&] { read_virtual_local_rank(); });
  faults.collect([&] {
    auto lines = read_rendezvous_conf({"--rdzv_conf", settings_.text("rdzv_conf")}, rendezvous);
    if (plan_.num_machines > 1) {
      plan_.notices.insert(plan_.notices.end(), lines.begin(), lines.end());
    }
  });
  faults.collect([&] { read_output(); });
  faults.raise();
}

Given Resolver::torchrun_default(const std::string& option) const {
  const std::string name = "PET_" + option;
  return {name, plan_.identity == Identity::none ? "" : plugins::variable(environment_, name)};
}

void Resolver::read_ending() {
  Given seconds = torchrun_default("SHUTDOWN_TIMEOUT");
  if (seconds.text.empty()) {
    seconds = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
               plugins::variable(environment_, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")};
  }
  if (!seconds.text.empty() && !settings_.given("shutdown_timeout")) {
    settings_.set("shutdown_timeout", seconds.text, {Source::Kind::environment, seconds.where});
  }
  plan_.shutdown_timeout = std::chrono::seconds(settings_.integer("shutdown_timeout"));
  if (const Given signals = torchrun_default("SIGNALS_TO_HANDLE"); !signals.text.empty()) {
    plan_.stop_signals = read_signals(signals);
  }
}

void Resolver::read_virtual_local_rank() {
  const Given toggle = torchrun_default("VIRTUAL_LOCAL_RANK");
  const auto on = plugins::parse_boolean(toggle.text.empty() ? "0" : toggle.text);
  if (!on) {
    throw Error(Errc::config, toggle.where + " must be 0 or 1, got \"" + toggle.text + "\"");
  }
  plan_.virtual_local_rank = *on;
  if (*on && plan_.gpu_ids.empty()) {
    check_own_gpus(toggle.where, plan_.local_world_size, environment_);
  }
}

void Resolver::read_output() {
  const OutputWords words = {torchrun_default("REDIRECTS"),
                             {"--tee", settings_.text("tee")},
                             torchrun_default("LOCAL_RANKS_FILTER"),
                             {"--log_dir", settings_.text("log_dir")}};
  plan_.output = plan_output(words, plan_.rendezvous.run_id, plan_.local_world_size,
                             facts_.working_directory, facts_.scratch_directory);
  if (!plan_.output.to_file.empty() && !settings_.has("log_dir")) {
    notice("the workers' files are in " + plan_.output.directory);
  }
}

}  // namespace acc::launcher
