#include "faces/accelerate/resolver.hpp"
#include "plan/torchrun_values.hpp"

namespace acc::launcher {

using plugins::Faults;

void Resolver::read_rendezvous() {
  using Backend = RendezvousPlan::Backend;
  RendezvousPlan& rendezvous = plan_.rendezvous;
  const bool meets = plan_.num_machines > 1 && settings_.choice("rdzv_backend") == "c10d";
  if (plan_.identity != Identity::none) {
    rendezvous.backend = meets ? Backend::c10d : Backend::fixed;
  }
  rendezvous.min_machines = plan_.num_machines;
  rendezvous.run_id = plugins::variable(environment_, "PET_RDZV_ID", "none");
  plan_.role = settings_.text("role");
  plan_.max_restarts = static_cast<int>(settings_.integer("max_restarts"));
  plan_.shutdown_timeout = std::chrono::seconds(settings_.integer("shutdown_timeout"));
  Faults faults;
  faults.collect([&] {
    auto lines = read_rendezvous_conf({"--rdzv_conf", settings_.text("rdzv_conf")}, rendezvous);
    if (plan_.num_machines > 1) {
      plan_.notices.insert(plan_.notices.end(), lines.begin(), lines.end());
    }
  });
  faults.collect([&] { read_output(); });
  faults.raise();
}

void Resolver::read_output() {
  // torchrun's own defaults, where Accelerate has no flag for the option.
  const auto variable = [&](const std::string& name) {
    return Given{name, plugins::variable(environment_, name)};
  };
  const OutputWords words = {variable("PET_REDIRECTS"),
                             {"--tee", settings_.text("tee")},
                             variable("PET_LOCAL_RANKS_FILTER"),
                             {"--log_dir", settings_.text("log_dir")}};
  plan_.output = plan_output(words, plan_.rendezvous.run_id, plan_.local_world_size,
                             facts_.working_directory, facts_.scratch_directory);
  if (!plan_.output.to_file.empty() && !settings_.has("log_dir")) {
    notice("the workers' files are in " + plan_.output.directory);
  }
}

}  // namespace acc::launcher
