// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime.hpp"

#include "acc/base/log.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/settings/environment.hpp"
#include "api/mine.hpp"
#include "api/runtime_state.hpp"
#include "collectives/make_group.hpp"
#include "flight/recorder.hpp"
#include "model/model_state.hpp"
#include "model/wrap.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace acc {

using sharding::guarded;

namespace {

std::string precision_in_words(const settings::ShardingSettings& sharding) {
  using settings::MixedPrecision;
  std::string text = sharding.is_mixed()
                         ? fmt::format("{} with fp32 master", to_string(sharding.mixed_precision))
                         : "fp32";
  if (sharding.reduce_precision) {
    text +=
        fmt::format(", gradients reduced in {}", *sharding.reduce_precision == MixedPrecision::no
                                                     ? "fp32"
                                                     : to_string(*sharding.reduce_precision));
  }
  return text;
}

/// Makes stdout line-buffered if it is a pipe, as C does on a terminal. The launcher then shows
/// lines when they are written, and a signal that ends the program loses none (docs/jobs.md).
void write_whole_lines() noexcept {
  struct stat out {};
  if (::fstat(STDOUT_FILENO, &out) == 0 && S_ISFIFO(out.st_mode)) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::fflush(stdout);  // glibc uses the new mode after the next flush
  }
}

Runtime described(Runtime runtime) {
  if (const Logger log = logger(Component::runtime); log.should_log(LogLevel::debug)) {
    log.debug("{}", runtime.describe());
  }
  return runtime;
}

/// Number of the next runtime among those of this process that have the same page of the
/// membership, and the same epoch if it names one, so that it does not read the keys of an earlier
/// one. Ranks agree on it because all of them make their runtimes in the same order.
int next_runtime(const settings::RuntimeSettings& settings) {
  static std::mutex mutex;
  static std::map<std::string, int> next;
  const std::lock_guard lock(mutex);
  return next[settings.membership]++;
}

Runtime from_program(const settings::ProgramSettings& program) {
  write_whole_lines();
  return Runtime::from_settings(
      settings::settings_from_environment(settings::current_environment(), program));
}

}  // namespace

Runtime Runtime::from_environment(const FullyShardedDataParallelPlugin& plugin) {
  return from_program(plugin.program_settings());
}

Runtime Runtime::from_environment(const DeepSpeedPlugin& plugin) {
  return from_program(plugin.program_settings());
}

Runtime Runtime::from_environment() {
  write_whole_lines();
  return from_settings(settings::settings_from_environment(settings::current_environment()));
}

Runtime Runtime::from_settings(const settings::RuntimeSettings& settings) {
  return described(Runtime(make_own<detail::RuntimeState>(
      settings, [number = next_runtime(settings)](const settings::WorkerIdentity& identity,
                                                  std::stop_token stop) {
        return std::shared_ptr(collectives::connect_store(identity, number, std::move(stop)));
      })));
}

Runtime Runtime::from_settings(const settings::RuntimeSettings& settings,
                               std::unique_ptr<rendezvous::Store> store) {
  return described(Runtime(make_own<detail::RuntimeState>(
      settings,
      [store = std::shared_ptr(std::move(store))](const auto&, const auto&) { return store; })));
}

int Runtime::rank() const {
  return state_->settings.identity.rank;
}
int Runtime::local_rank() const {
  return state_->settings.identity.local_rank;
}
int Runtime::world_size() const {
  return state_->settings.identity.world_size;
}
const settings::RuntimeSettings& Runtime::settings() const {
  return state_->settings;
}

ComputeDevice Runtime::device() const {
  device::Device& device = *state_->compute.device;
  return {.kind = device.kind(),
          .index = device.index(),
          .name = device.describe(),
          .stream = device.compute().native()};
}

void Runtime::account_memory(std::int64_t nbytes, std::string_view what) {
  device::Device& device = *mine(state_).compute.device;
  if (device.kind() != settings::Device::cpu) {
    device.account(nbytes, what);
  }
}

// The line begins with the strategy and its source, if a launcher or the program chose one, and
// lists only properties that differ from the defaults at its end.
std::string Runtime::summary() const {
  const auto& plan = state_->groups.plan;
  const settings::RuntimeSettings& settings = state_->settings;
  const bool alone = world_size() == 1;
  std::string text;
  if (settings.origin != "none") {
    text = fmt::format("{} (from {}), ", to_string(settings.sharding.strategy), settings.origin);
  } else if (!alone) {
    text = fmt::format("{}, ", to_string(settings.sharding.strategy));
  }
  const int machines = settings.identity.num_nodes;
  text += alone ? "one process"
                : fmt::format("{} ranks on {}", world_size(),
                              machines == 1 ? "one machine" : fmt::format("{} machines", machines));
  text += fmt::format(", {}, precision {}", state_->compute.device->describe(),
                      precision_in_words(settings.sharding));
  if (plan.shard_size() > 1 && plan.replicate_size() > 1) {
    text += fmt::format(", shard groups of {}", plan.shard_size());
  }
  if (state_->groups.secondary) {
    text += fmt::format(
        ", {} over {}",
        settings.sharding.reshard_size > 1 ? "resharded after forward" : "secondary copy",
        plan.secondary.size());
  }
  if (settings.sharding.deterministic) {
    text += ", deterministic";
  }
  if (settings.check) {
    text += ", accesses checked";
  }
  if (!settings.program_values.empty()) {
    text += fmt::format("; the program's {} sets {}", settings.program_plugin,
                        fmt::join(settings.program_values, ", "));
  }
  return text;
}

std::string Runtime::describe() const {
  const auto& groups = state_->groups;
  return world_size() == 1 ? summary()
                           : fmt::format("{}; shard group {} x replicate group {}, {}", summary(),
                                         groups.plan.shard_size(), groups.plan.replicate_size(),
                                         groups.shard->describe());
}

Model Runtime::model(std::uint64_t seed, const ModelOptions& options) {
  if (mine(state_).settings.sharding.mixed_precision == settings::MixedPrecision::fp8 &&
      !options.fp8) {
    throw Error(Errc::not_supported,
                "mixed_precision fp8: this program does not compute in fp8 on " + device().name +
                    " (ModelOptions::fp8); use bf16");
  }
  auto model = make_own<detail::ModelState>(state_->settings, state_->groups,
                                            state_->compute.device, state_->tracer, seed, options);
  state_->models.push_back(model);
  return Model(std::move(model));
}

int Runtime::gradient_accumulation_steps() const {
  return state_->settings.sharding.micro_steps();
}

bool Runtime::last_micro_step(const Model& model) const {
  return mine(model.state_).last_micro_step();
}

// A sum in rank order, so that every rank and every run gets the same value.
double Runtime::mean(double value) {
  std::array<double, 1> sum = {value};
  guarded(state_->groups, [&] { state_->groups.world->all_reduce(sum, ReduceOp::sum)->wait(); });
  return sum[0] / world_size();
}

struct IssuedMean::State {
  std::shared_ptr<detail::RuntimeState> runtime;
  sharding::LateDoubles sum;
  double divisor;
};

IssuedMean Runtime::issue_mean(const double* value, double divisor) {
  device::Device& device = *mine(state_).compute.device;
  return guarded(state_->groups, [&] {
    if (!state_->sum) {
      state_->sum = device.allocate(sizeof(double), "figures");
      state_->reader.emplace(device);
    }
    auto* const sum = state_->sum->as<double>();
    device.copy(sum, value, sizeof(double), device.compute());
    auto work = state_->groups.world->sum(sum, 1);
    work->wait();
    return IssuedMean(std::make_shared<IssuedMean::State>(IssuedMean::State{
        state_, state_->reader->read(sum, 1, {std::move(work)}), divisor * world_size()}));
  });
}

double IssuedMean::value() const {
  return guarded(state_->runtime->groups, [&] { return state_->sum.wait()[0] / state_->divisor; });
}

std::vector<double> Runtime::all_gather(std::span<const double> values) {
  return guarded(state_->groups, [&] {
    return sharding::all_gather(state_->groups, *state_->compute.device, values);
  });
}

void Runtime::barrier() {
  guarded(state_->groups, [&] { state_->groups.world->barrier()->wait(); });
}

bool Runtime::report(std::span<const std::pair<std::string_view, double>> values) {
  return mine(state_).groups.recorder->report(values);
}

bool Runtime::report(std::initializer_list<std::pair<std::string_view, double>> values) {
  return report(std::span(values.begin(), values.size()));
}

void Runtime::abort(const std::string& reason) noexcept {
  state_->groups.abort(reason, Errc::peer_lost);
}

std::vector<bool> Runtime::wrap(const std::vector<ModuleInfo>& modules) const {
  const settings::ShardingSettings& settings = state_->settings.sharding;
  std::vector<model::DeclaredUnit> declared(modules.size());
  std::map<std::string, std::pair<std::size_t, std::size_t>> first;  // module, its parameter
  for (std::size_t m = 0; m < modules.size(); ++m) {
    const ModuleInfo& module = modules[m];
    declared[m] = {module.name, module.class_name, module.name.empty(), {}};
    for (const auto& [name, numel] : module.parameters) {
      const auto [found, is_first] = first.try_emplace(name, m, declared[m].parameters.size());
      const std::string leaf = name.substr(name.rfind('.') + 1);
      const std::string inside = module.name.empty() ? leaf : module.name + "." + leaf;
      if (is_first) {
        declared[m].parameters.push_back({{name}, numel});
      } else {  // tied: a second name, in this module
        declared[found->second.first].parameters[found->second.second].names.push_back(inside);
      }
    }
  }
  const model::ModuleTree tree =
      model::build_tree(declared, model::IgnoredModules(settings.ignored_modules));
  const bool program_chooses = settings.wrap_policy == settings::WrapPolicy::unset ||
                               (settings.wrap_policy == settings::WrapPolicy::transformer_based &&
                                settings.transformer_layer_classes.empty());
  std::vector<bool> chosen(modules.size());
  for (const int module : model::wrap(state_->settings, tree)) {
    const int declared_number = tree.modules[static_cast<std::size_t>(module)].unit;
    if (declared_number >= 0) {  // else a module that only occurs in the name of a parameter
      const auto number = static_cast<std::size_t>(declared_number);
      chosen[number] = !program_chooses || modules[number].is_candidate;
    }
  }
  return chosen;
}

}  // namespace acc
