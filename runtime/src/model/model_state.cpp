// SPDX-License-Identifier: Apache-2.0
// A model from its declaration to its last scope.
//
// Declaration: add_unit and UnitState::add collect records. finalize: every rank compares its
// declaration with rank 0's; a pure plan assigns parameters to sharded units; flat parameters and
// pools are allocated; values are initialised and published. Scopes: a scope of a declared unit
// opens the sharded units that contain its parameters. All of this is issued in the same order on
// all ranks, because the plan depends only on the declaration and on settings that the ranks have
// compared.
//
// Parameters are numbered in the order of declaration, unit by unit. plan_units, records_of and
// make_units all rely on that numbering.
#include "model/model_state.hpp"

#include "acc/base/log.hpp"
#include "acc/base/machine.hpp"
#include "device/cpu_device.hpp"
#include "flight/recorder.hpp"
#include "model/orig_params.hpp"
#include "model/wrap.hpp"
#include "sharding/gradient_offload.hpp"
#include "sharding/initial_values.hpp"
#include "sharding/persistence.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>

namespace acc::detail {

using sharding::ParameterRecord;
using sharding::ShardUnit;

namespace {

/// Threads of the CPU updater of an offloaded optimizer: an equal part of the cores that this
/// process may use.
int updater_threads(const settings::WorkerIdentity& identity) {
  return std::max(1, usable_cores() / identity.local_world_size);
}

bool on_gpu(const device::Device& device) {
  return device.kind() == settings::Device::cuda;
}

/// On the CPU, offload to the CPU has no effect: everything is in host memory.
sharding::Context make_context(const settings::RuntimeSettings& settings, sharding::Groups groups,
                               const device::DevicePtr& device,
                               std::shared_ptr<trace::Tracer> tracer, const ModelOptions& options) {
  settings::RuntimeSettings own = settings;
  settings::ShardingSettings& asked = own.sharding;
  if (options.by_rows) {
    asked.gradient_accumulation_steps = 1;  // the program takes the gradients of each micro-step
  }
  const settings::StrategySwitches on = groups.plan.on;
  const bool gpu = on_gpu(*device);
  sharding::PrecisionPolicy precision = sharding::make_policy(asked, options.dtype, device->kind());
  if ((options.bfloat16_on_cpu && precision.gathered == DType::bfloat16) ||
      (options.float16_on_cpu && precision.gathered == DType::float16)) {
    precision.viewed = precision.gathered;
  }
  if (options.float32_buffers) {
    precision.buffers = DType::float32;
  }
  constexpr auto kNvme = settings::OffloadDevice::nvme;
  const auto swap = asked.offload_optimizer == kNvme || asked.offload_param == kNvme
                        ? std::make_shared<swap::SwapDevice>(device, asked.nvme)
                        : nullptr;
  const bool offloads_optimizer = gpu && asked.offload_optimizer == settings::OffloadDevice::cpu;
  if (swap && options.by_rows) {
    throw Error(Errc::not_supported,
                "offload to nvme of a model whose parameters the program holds as rows: offload to "
                "the CPU");
  }
  const bool offloads_param =
      (gpu && asked.offload_param == settings::OffloadDevice::cpu) || asked.offload_param == kNvme;
  return {
      .settings = own,
      .on = on,
      .groups = std::move(groups),
      .device = device,
      .updater = offloads_optimizer ? device::open_cpu_device(updater_threads(settings.identity))
                 : swap             ? swap
                                    : device,
      .swap = swap,
      .fetches = offloads_param ? device->make_stream("copy to GPU") : nullptr,
      .precision = precision,
      .codes = sharding::sent_codes(asked),
      .by_rows = options.by_rows,
      // mprotect(2) protects host memory only.
      .guard = std::make_unique<sharding::ViewGuard>(settings.check && !gpu && !options.by_rows),
      .tracer = std::move(tracer)};
}

}  // namespace

ModelState::ModelState(const settings::RuntimeSettings& settings, sharding::Groups groups,
                       const device::DevicePtr& device, std::shared_ptr<trace::Tracer> tracer,
                       std::uint64_t seed, const ModelOptions& options)
    : context_(make_context(settings, std::move(groups), device, std::move(tracer), options)),
      schedule_(sharding::schedule_rules(
          settings.sharding, context_.on,
          on_gpu(*context_.device) || context_.offload_param() ||
              (!context_.groups.shard->shares_gathered_memory() && !settings.copy_gathers))),
      declared_seed_(seed),
      seed_(seed),
      options_(options) {}

TrafficReport ModelState::traffic() const {
  TrafficReport report = counters_.traffic;
  const collectives::SentBytes sent = context_.groups.sent();
  report.gathered_bytes_sent = sent.gathered - sent_before_.gathered;
  report.reduced_bytes_sent = sent.reduced - sent_before_.reduced;
  return report;
}

void ModelState::reset_traffic() {
  counters_.traffic = {};
  sent_before_ = context_.groups.sent();
}

ModelState::~ModelState() {
  late_copies.before_end(*context_.updater);
  context_.guard->release();
  // Collectives under way use this model's memory, so they must end before it is freed. If an
  // exception destroys the model, the peers may never come: the groups are aborted instead.
  try {
    if (std::uncaught_exceptions() > 0) {
      context_.groups.abort("ended by an error in the program", Errc::peer_lost);
      return;
    }
    if (context_.groups.recorder) {
      context_.groups.recorder->leaves();
    }
    pools_.gradients.drain();
    if (pools_.gradient_offload) {
      pools_.gradient_offload->drain();
    }
    for (sharding::FlatParameter* flat : flats()) {
      flat->settle();
    }
  } catch (const std::exception&) {  // a wait failed: the groups are aborted, nothing is under way
  }
}

Unit& ModelState::add_unit(std::string name, std::string class_name, bool is_root) {
  check_open("unit '" + sharding::unit_label(name) + "'");
  for (const auto& each : unit_states_) {
    if (each->name == name || (is_root && each->is_root)) {
      throw Error(Errc::invalid_argument,
                  fmt::format("unit '{}' declared twice{}", sharding::unit_label(name),
                              is_root ? " as a root" : ""));
    }
  }
  unit_states_.push_back(std::make_unique<UnitState>(this, static_cast<int>(unit_states_.size()),
                                                     std::move(name), std::move(class_name),
                                                     is_root));
  units_.push_back(std::unique_ptr<Unit>(new Unit(unit_states_.back().get())));
  return *units_.back();
}

void ModelState::check_open(const std::string& what) const {
  if (finalized_) {
    throw Error(Errc::invalid_argument,
                what + " comes too late: the model is in use, declare everything before its use");
  }
}

void ModelState::finalize() {
  if (ready_) {
    return;
  }
  if (finalized_) {  // an earlier call has failed halfway
    throw Error(Errc::invalid_argument, "the model cannot be used: its initialization has failed");
  }
  const flight::Scope scope(context_.groups.recorder.get(), "start", "");
  // Before any shared memory is allocated, because sizes follow from the declaration.
  model::check_declared_alike(context_, declaration(), "the ranks declare different models: ");
  check_names();
  const model::Assembly plan = plan_units();
  for (const model::UnitPlan& unit : plan.units) {
    model::check_trained_alike(context_.settings.sharding, sharding::unit_label(unit.name),
                               records_of(unit));
  }
  finalized_ = true;  // from here on memory is allocated, and a failure is final
  mark_persistent();
  make_units(plan);
  size_pools();
  initialize(true);
  ready_ = true;
}

void ModelState::check_renew() const {
  for (const auto& unit : shard_units_) {
    if (unit->is_open()) {
      throw Error(Errc::invalid_argument,
                  fmt::format("CheckpointSeries::rejoin() inside an open scope of unit '{}'",
                              unit->name()));
    }
  }
  const char* const what = on_gpu(*context_.device)                      ? "on a GPU"
                           : context_.by_rows                            ? "with FSDP2's layout"
                           : !context_.settings.recording.folder.empty() ? "with ACC_RECORD"
                           : finalized_ && !ready_ ? "after a failed initialization"
                                                   : nullptr;
  if (what != nullptr) {
    throw Error(Errc::not_supported,
                fmt::format("a rank cannot rejoin the job {} in this version", what));
  }
}

/// Issues the collectives of `finalize`, then of `share`, in their order.
void ModelState::renew(const settings::WorkerIdentity& identity, const sharding::GroupPlan& plan) {
  context_.settings.identity = identity;
  context_.groups.plan = plan;
  if (!ready_) {
    return;
  }
  context_.guard->release();
  counters_.uses = {};
  counters_.gradients_closed = 0;
  sent_before_ = {};
  order_.clear();
  schedule_.restart();
  seed_ = declared_seed_;
  for (const auto& unit : unit_states_) {
    unit->uses = {};
    unit->clear_requirements();
  }
  const flight::Scope scope(context_.groups.recorder.get(), "start", "");
  model::check_declared_alike(context_, declaration(), "the ranks declare different models: ");
  for (const auto& unit : shard_units_) {
    unit->renew();
  }
  pools_.clear();
  initialize(false);
  for (const auto& [data, nbytes] : shared_) {
    model::broadcast_values(context_, data, nbytes);
  }
  if (renew_optimizer) {
    renew_optimizer();
  }
}

bool ModelState::knows_initial_values() const {
  const auto is_known = [](const auto& each) { return each.initializer.repeatable(); };
  return std::ranges::all_of(unit_states_, [&](const auto& unit) {
    return std::ranges::all_of(unit->parameters, is_known) &&
           std::ranges::all_of(unit->buffers, is_known);
  });
}

/// Contains every property on which sizes or the order of collectives depend, and the seed.
model::Declaration ModelState::declaration() const {
  const auto sizes = [](const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); };
  model::Declaration all = {{"the model's dtype", std::string(to_string(options_.dtype))},
                            {"the model's seed", std::to_string(seed_)}};
  for (const auto& unit : unit_states_) {
    all.emplace_back(
        fmt::format("unit '{}'", unit->label),
        fmt::format("{} of class {}", unit->is_root ? "the root" : "a unit", unit->class_name));
    for (const ParameterRecord& each : unit->parameters) {
      std::string value = sizes(each.shape);
      value += each.trainable ? "" : ", frozen";
      if (each.has_own_dtypes) {
        value +=
            fmt::format(", {} computed in {} and reduced in {}", to_string(each.precision.stored),
                        to_string(each.precision.viewed), to_string(each.precision.reduced));
      }
      value += each.weight_decay ? "" : ", without weight decay";
      value +=
          each.aliases.empty() ? "" : fmt::format(", tied to {}", fmt::join(each.aliases, ", "));
      all.emplace_back(each.name, std::move(value));
    }
    for (const model::BufferRecord& each : unit->buffers) {
      std::string value =
          fmt::format("a buffer of {} {}", sizes(each.shape), to_string(each.dtype));
      value +=
          each.aliases.empty() ? "" : fmt::format(", tied to {}", fmt::join(each.aliases, ", "));
      all.emplace_back(each.name, std::move(value));
    }
  }
  return all;
}

void ModelState::check_names() const {
  std::set<std::string> names;
  const auto claim = [&names](const std::string& name) {
    if (!names.insert(name).second) {
      throw Error(Errc::invalid_argument, "two parameters or buffers are named " + name);
    }
  };
  for (const auto& unit : unit_states_) {
    for (const ParameterRecord& each : unit->parameters) {
      std::ranges::for_each(each.names(), claim);
    }
    for (const model::BufferRecord& each : unit->buffers) {
      std::ranges::for_each(each.names(), claim);
    }
  }
}

model::Assembly ModelState::plan_units() {
  const settings::ShardingSettings& settings = context_.settings.sharding;
  const model::IgnoredModules ignored(settings.ignored_modules);
  std::vector<model::DeclaredUnit> declared;
  for (const auto& unit : unit_states_) {
    declared.push_back({unit->name, unit->class_name, unit->is_root, {}});
    for (const ParameterRecord& each : unit->parameters) {
      declared.back().parameters.push_back({each.names(), each.numel});
    }
    for (model::BufferRecord& each : unit->buffers) {
      each.ignored = ignored.contains_holder_of(each.name);
    }
  }
  const model::ModuleTree tree = model::build_tree(declared, ignored);
  std::size_t number = 0;
  for (const auto& unit : unit_states_) {
    for (ParameterRecord& each : unit->parameters) {
      each.ignored = tree.parameters[number++].ignored;
    }
  }
  return model::assemble(tree, options_.units_as_declared ? model::declared_units(tree)
                                                          : model::wrap(context_.settings, tree));
}

bool ModelState::keeps_addresses(UnitState& unit) {
  finalize();
  return std::ranges::all_of(unit.owners, [this](int number) {
    return std::ranges::all_of(sharded(number).flats(),
                               [](const auto& flat) { return flat->keeps_address(); });
  });
}

std::vector<ParameterRecord> ModelState::records_of(const model::UnitPlan& unit) const {
  std::vector<const ParameterRecord*> all;
  for (const auto& each : unit_states_) {
    for (const ParameterRecord& record : each->parameters) {
      all.push_back(&record);
    }
  }
  std::vector<ParameterRecord> records;
  for (const int number : unit.parameters) {
    records.push_back(*all[static_cast<std::size_t>(number)]);
  }
  return records;
}

void ModelState::mark_persistent() {
  // If the ranks share gathered memory, the full parameter exists anyway: there is nothing to keep
  // gathered, and one flat parameter per unit needs fewer collectives than two.
  const bool gathers_move = context_.settings.identity.num_nodes > 1 ||
                            context_.settings.elastic_replicas || context_.offload_param() ||
                            context_.settings.copy_gathers || on_gpu(*context_.device);
  if (!context_.on.reshard_after_forward || !gathers_move) {
    return;
  }
  sharding::PersistenceBudget budget(context_.settings.sharding);
  for (const auto& unit : unit_states_) {
    for (ParameterRecord& each : unit->parameters) {
      each.persistent = !each.ignored && budget.admits(each.numel);
    }
  }
}

/// The usual size of a gather buffer is that of the largest flat parameter outside the root, so
/// that every unit can use any buffer; the root, often larger, gets its own.
void ModelState::size_pools() {
  std::size_t usual = 0;
  std::size_t most = 1;  // flat parameters of a unit
  for (const auto& unit : shard_units_) {
    most = std::max(most, unit->flats().size());
    for (const auto& flat : unit->flats()) {
      const auto& layout = flat->layout();
      logger(Component::runtime)
          .debug("unit {}: {} elements with padding, {} per shard", flat->unit_name(),
                 layout.padded_numel, layout.shard_numel);
      const std::size_t nbytes =
          static_cast<std::size_t>(layout.padded_numel) * nbytes_of(layout.precision.gathered);
      usual = std::max(usual, unit->is_root() ? 0 : nbytes);
    }
  }
  pools_.gathers.expect(usual);
  if (context_.by_rows) {
    pools_.gradients.expect(most);
  }
  if (pools_.secondary_gathers) {
    pools_.secondary_gathers->expect(usual);
  }
}

/// Makes the sharded units, whose order is that of their flat parameters' allocations and later of
/// the reductions and updates of a step; then stores in the declared units where their parameters
/// are.
void ModelState::make_units(const model::Assembly& plan) {
  for (const model::UnitPlan& unit : plan.units) {
    shard_units_.push_back(std::make_unique<ShardUnit>(context_, pools_, counters_, schedule_,
                                                       unit.name, unit.is_root, records_of(unit)));
  }
  std::size_t number = 0;
  for (std::size_t u = 0; u < unit_states_.size(); ++u) {
    UnitState& unit = *unit_states_[u];
    unit.owners = plan.owners[u];
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const model::Assembly::Place& place = plan.places[number++];
      unit.places.push_back({shard_units_[static_cast<std::size_t>(place.unit)].get(),
                             static_cast<std::size_t>(place.index)});
    }
  }
}

/// The first gather of each flat parameter belongs to its publication (resident weights) or to its
/// first use (transient weights).
void ModelState::initialize(bool known) {
  for (sharding::FlatParameter* flat : flats()) {
    if (!flat->parameters().front().has_own_dtypes) {
      sharding::initialize(context_, *flat, seed_, known);
    }
    flat->publish();
  }
  for (model::BufferRecord* buffer : buffers()) {
    model::make_buffer(context_, *buffer, seed_);
  }
}

// A scope first checks all sharded units that it opens, then opens them one by one, each followed
// by the early gathers that the schedule asks for.
void ModelState::before_forward(UnitState& unit) {
  finalize();
  for (const int number : unit.owners) {
    sharded(number).check_forward();
  }
  if (counters_.no_grad_depth == 0) {
    unit.uses.begin_forward();
    counters_.uses.begin_forward();
    order_.add(unit.index, model::UseOrder::Event::begins_forward);
  }
  open(unit, &ShardUnit::before_forward);
}

void ModelState::after_forward(UnitState& unit) {
  close(unit, [](ShardUnit& each) { each.after_forward(); });
}

void ModelState::before_recompute(UnitState& unit) {
  finalize();
  for (const int number : unit.owners) {
    if (!options_.autograd) {  // otherwise the first forward may have run under no_grad
      sharded(number).check_backward("recomputation for backward", false);
    }
  }
  open(unit, &ShardUnit::before_recompute);
}

void ModelState::after_recompute(UnitState& unit) {
  close(unit, [](ShardUnit& each) { each.after_recompute(); });
}

void ModelState::before_backward(UnitState& unit) {
  finalize();
  for (const int number : unit.owners) {
    sharded(number).check_backward("backward", options_.autograd);
  }
  unit.uses.begin_backward();
  counters_.uses.begin_backward();
  unit.want_gradients();
  order_.add(unit.index, model::UseOrder::Event::begins_backward);
  open(unit, &ShardUnit::before_backward);
}

void ModelState::after_backward(UnitState& unit, bool asked_gradient) {
  if (unit.uses.end_backward(asked_gradient)) {
    counters_.uses.end_backward();
  }
  order_.add(unit.index, model::UseOrder::Event::ends_backward);
  close(unit, [this](ShardUnit& each) { prefetch(each.after_backward()); });
}

void ModelState::open(const UnitState& unit, Open each) {
  std::size_t opened = 0;
  try {
    for (const int number : unit.owners) {
      const ShardUnit::Early early = (sharded(number).*each)();
      ++opened;
      prefetch(early);
    }
  } catch (...) {
    for (; opened > 0; --opened) {
      sharded(unit.owners[opened - 1]).abandon();
    }
    throw;
  }
}

void ModelState::close(const UnitState& unit,
                       const std::function<void(sharding::ShardUnit&)>& each) {
  for (auto number = unit.owners.rbegin(); number != unit.owners.rend(); ++number) {
    try {
      each(sharded(*number));  // which counts as closed, also if it throws
    } catch (...) {
      for (++number; number != unit.owners.rend(); ++number) {
        sharded(*number).abandon();
      }
      throw;
    }
  }
}

void ModelState::abandon(UnitState& unit) {
  for (const int number : unit.owners) {
    sharded(number).abandon();
  }
}

/// Adds what is missing of a unit with trained parameters. Under autograd a forward may have no
/// backward (its graph was dropped) or several; otherwise each has one, with a gradient.
void ModelState::add_missing_gradients(const UnitState& unit,
                                       std::vector<std::string>& found) const {
  const sharding::UnitUses& uses = unit.uses;
  if (!unit.trains()) {
    return;
  }
  if (options_.autograd) {
    if (uses.forwards > 0 && !uses.wrote) {
      found.push_back(fmt::format(
          "unit '{}' had a forward since the last step, but its backward wrote no gradient; call "
          "fully_shard with unused_units=True (ShardOptions::unused_units) if it is zero on "
          "purpose",
          unit.label));
    }
  } else if (uses.forwards > uses.backwards) {
    found.push_back(fmt::format(
        "unit '{}' had {} forward scope(s) outside no_grad() and {} backward scope(s) since the "
        "last step; set the model's option unused_units if its gradient is zero on purpose",
        unit.label, uses.forwards, uses.backwards));
  } else if (uses.without_gradient > 0) {
    found.push_back(fmt::format(
        "the backward scopes of unit '{}' asked for no gradient to write in {} of {} "
        "micro-step(s); set the model's option unused_units if its gradient is zero on purpose",
        unit.label, uses.without_gradient, uses.micro_steps));
  }
}

/// Open scopes are reported first: they explain missing backwards. Units without trained parameters
/// need no backward.
std::vector<std::string> ModelState::mistakes(bool updates_all) const {
  std::vector<std::string> found;
  for (const auto& unit : shard_units_) {
    if (unit->is_open()) {
      found.push_back(fmt::format("it is called inside an open scope of unit '{}'", unit->name()));
    }
  }
  if (!found.empty()) {
    return found;
  }
  for (const auto& unit : unit_states_) {
    if (!options_.unused_units) {
      add_missing_gradients(*unit, found);
    }
    for (const std::string& name :
         updates_all ? unit->without_gradient() : std::vector<std::string>()) {
      found.push_back(fmt::format(
          "parameter '{}' did not require a gradient in any backward since the last step, and this "
          "optimizer updates all parameters of the module: freeze it before fully_shard, shard the "
          "parts as modules with an optimizer each, or use an optimizer of torch "
          "(acc.TorchOptimizer, Sharded::optimizer), which leaves such parameters out",
          name));
    }
  }
  return found;
}

/// Runs before the first collective of the step. Peers may be in that collective already; the abort
/// makes them fail with the same text.
void ModelState::check_step(bool updates_all) const {
  const std::vector<std::string> found = mistakes(updates_all);
  if (found.empty()) {
    return;
  }
  const int rank = context_.settings.identity.rank;
  const std::string more =
      found.size() > 1 ? fmt::format(" (and {} more like it)", found.size() - 1) : "";
  const std::string reason =
      fmt::format("rank {}: Optimizer::step() refused: {}{}", rank, found.front(), more);
  context_.groups.abort(reason);
  throw Error(Errc::invalid_argument, reason, rank);
}

bool ModelState::check_order(double same) {
  const std::vector<bool> alike =
      model::alike(*context_.groups.world, {static_cast<double>(order_.hash()), same});
  if (!alike[0]) {
    const std::string difference = order_.difference(*context_.groups.world, [this](int unit) {
      return unit_states_[static_cast<std::size_t>(unit)]->label;
    });
    throw Error(Errc::invalid_argument,
                difference + "; all ranks must run the same forwards and backwards");
  }
  return alike[1];
}

/// Order: reductions that no micro-step has issued; the buffers of reductions under way;
/// all_reduces between replicas, issued for all flat parameters before the first is waited for;
/// copies to host memory of an offloaded optimizer.
void ModelState::finish_reductions() {
  for (const auto& unit : shard_units_) {
    unit->flush();
  }
  pools_.gradients.drain();
  std::vector<sharding::FlatGradient*> gradients;
  for (sharding::FlatParameter* flat : flats()) {
    if (flat->trainable()) {
      flat->settle();  // waits also for a gather of the weights that no scope has used
      if (flat->gradient()->is_due()) {
        gradients.push_back(flat->gradient());
      }
    }
  }
  if (context_.groups.replicate && context_.on.shard_gradients) {
    for (sharding::FlatGradient* gradient : gradients) {
      gradient->all_reduce_replicas();
    }
    for (sharding::FlatGradient* gradient : gradients) {
      gradient->wait_reduction();
    }
  }
  for (sharding::FlatGradient* gradient : gradients) {
    gradient->finish();
  }
  if (pools_.gradient_offload) {
    pools_.gradient_offload->drain();
    context_.await_compute();
  }
}

std::vector<ParameterShard> ModelState::shards(bool trained_only) {
  std::vector<ParameterShard> all;
  for (sharding::FlatParameter* flat : flats()) {
    if (trained_only && !flat->trainable()) {
      continue;
    }
    auto* const weights = static_cast<std::byte*>(flat->master());
    for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
      const sharding::Overlap part = overlap(flat->layout(), i, flat->owned());
      const ParameterRecord& parameter = flat->parameters()[i];
      all.push_back({.name = parameter.name,
                     .offset = part.in_parameter,
                     .numel = part.numel,
                     .weight_decay = parameter.weight_decay,
                     .dtype = flat->stored(),
                     .in_host_memory = context_.updater->host_can_use(weights),
                     .weights = weights + static_cast<std::size_t>(part.in_shard) *
                                              nbytes_of(flat->stored())});
    }
  }
  return all;
}

void ModelState::check_host_weights() const {
  for (sharding::FlatParameter* flat : flats()) {
    const char* const what = context_.in_file(flat->master()) ? "master weights"
                             : context_.gradients_in_file()   ? "gradients"
                                                              : nullptr;
    if (what != nullptr) {
      throw Error(
          Errc::not_supported,
          fmt::format("the {} of unit '{}' are in a file (offload to nvme), where the program "
                      "cannot use them: use an optimizer of the runtime, or offload to the CPU",
                      what, sharding::unit_label(flat->unit_name())));
    }
  }
}

std::vector<ParameterShard> ModelState::shards_with_gradients() {
  const std::set<std::string> left_out = without_gradient();
  std::vector<ParameterShard> all = shards(true);
  auto shard = all.begin();
  for (sharding::FlatParameter* flat : flats()) {
    for (std::size_t i = 0; flat->trainable() && i < flat->parameters().size(); ++i, ++shard) {
      if (!left_out.contains(shard->name) && flat->gradient()->is_due()) {
        shard->gradient =
            flat->gradient()->reduced() + overlap(flat->layout(), i, flat->owned()).in_shard;
      }
    }
  }
  return all;
}

void ModelState::take_gradients(const ShardsVisit& visit) {
  check_host_weights();
  finish_reductions();
  check_order(0.0);
  late_copies.expose_weights(*context_.updater);
  std::vector<ParameterShard> all = shards_with_gradients();
  auto shard = all.begin();
  for (sharding::FlatParameter* flat : flats()) {
    if (context_.by_rows && flat->trainable()) {  // one shard for each
      shard->gradient_memory =
          flat->gradient()->is_due() ? flat->gradient()->give_reduced() : nullptr;
      ++shard;
    }
  }
  sharding::with_program(context_.groups, "the function that takes gradients", [&] { visit(all); });
  drop_gradients();  // forwards that have begun still await their backwards
}

void ModelState::publish() {
  finalize();
  for (const auto& unit : shard_units_) {
    unit->release("Model::publish()");
  }
  for (sharding::FlatParameter* flat : flats()) {
    flat->round_master();
    flat->publish();
  }
  if (context_.announces_together()) {
    context_.groups.shard->barrier()->wait();
  }
}

void ModelState::after_step() {
  for (const auto& unit : shard_units_) {
    unit->after_step();
  }
  for (const auto& unit : unit_states_) {
    unit->uses = {};
    unit->clear_requirements();
  }
  counters_.uses = {};
  order_.clear();
  schedule_.after_step();
}

/// Ranks take part by the scopes that they had, which are the same on all of them; not by the
/// gradients, which may be missing on some.
void ModelState::drop_gradients() {
  for (const auto& unit : shard_units_) {
    if (unit->is_open()) {
      throw Error(Errc::invalid_argument,
                  fmt::format("zero_grad() inside an open scope of unit '{}'", unit->name()));
    }
  }
  if (counters_.uses.backwards == 0) {
    return;
  }
  pools_.gradients.drain();
  if (pools_.gradient_offload) {
    pools_.gradient_offload->drain();
  }
  for (const auto& unit : shard_units_) {
    unit->drop_gradients();
  }
  for (const auto& unit : unit_states_) {
    unit->uses.drop();
    unit->clear_requirements();
  }
  counters_.uses.drop();
  schedule_.drop_gradients();
  order_.drop();
}

void ModelState::forget_forwards() {
  for (const auto& unit : unit_states_) {
    unit->uses.forget_forwards();
  }
  counters_.uses.forget_forwards();
  schedule_.forget_forwards();
}

std::set<std::string> ModelState::without_gradient() const {
  std::set<std::string> names;
  for (const auto& unit : unit_states_) {
    const std::vector<std::string> of_unit = unit->without_gradient();
    names.insert(of_unit.begin(), of_unit.end());
  }
  return names;
}

/// Reductions divide by gradient_accumulation_steps, because the number of micro-steps that will be
/// made is not known then.
double ModelState::mean_correction() const {
  const int usual = context_.settings.sharding.micro_steps();
  const int made = counters_.uses.micro_steps;
  return made > 0 && made < usual ? static_cast<double>(usual) / made : 1.0;
}

void ModelState::prefetch(const std::vector<int>& units) {
  for (const int number : units) {
    sharded(number).prefetch();
  }
  if (context_.swap) {
    context_.swap->progress();
  }
}

std::vector<sharding::FlatParameter*> ModelState::flats() const {
  std::vector<sharding::FlatParameter*> all;
  for (const auto& unit : shard_units_) {
    for (const auto& flat : unit->flats()) {
      all.push_back(flat.get());
    }
  }
  return all;
}

void ModelState::seed_noise(std::uint64_t seed) {
  seed_ = seed;
  for (sharding::FlatParameter* flat : flats()) {
    flat->seed_noise(sharding::stream_of(flat->parameters().front().name, seed));
  }
}

void ModelState::share(const std::string& name, void* data, std::size_t nbytes) {
  finalize();
  const settings::ShardingSettings& settings = context_.settings.sharding;
  if (settings.sync_module_states &&
      !model::IgnoredModules(settings.ignored_modules).contains_holder_of(name)) {
    model::broadcast_values(context_, data, nbytes);
    shared_.emplace_back(data, nbytes);
  }
}

std::vector<model::BufferRecord*> ModelState::buffers() {
  std::vector<model::BufferRecord*> all;
  for (const auto& unit : unit_states_) {
    for (model::BufferRecord& each : unit->buffers) {
      all.push_back(&each);
    }
  }
  return all;
}

/// Any unit will do: a micro-step need not use all of them.
bool ModelState::last_micro_step() const {
  return std::any_of(shard_units_.begin(), shard_units_.end(), [this](const auto& unit) {
    return unit->uses().micro_steps >= context_.settings.sharding.micro_steps();
  });
}

std::int64_t ModelState::numel() const {
  return std::accumulate(unit_states_.begin(), unit_states_.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& unit) { return sum + unit->numel(); });
}

/// Pools report their peak, because they keep every buffer; the rest is what is held now.
MemoryReport ModelState::memory() const {
  MemoryReport report;
  for (const sharding::FlatParameter* flat : flats()) {
    report.parameter_bytes += flat->master_nbytes();
    report.gradient_bytes += flat->trainable() ? flat->gradient()->held_nbytes() : 0;
    report.gathered_bytes += flat->gathered_nbytes();
  }
  for (const auto& unit : unit_states_) {
    for (const model::BufferRecord& each : unit->buffers) {
      report.buffer_bytes += each.values ? static_cast<std::int64_t>(each.nbytes()) : 0;
    }
  }
  report.optimizer_bytes = optimizer_nbytes;
  report.snapshot_bytes =
      memory_snapshot_nbytes +
      (snapshot_memory != nullptr ? static_cast<std::int64_t>(snapshot_memory->nbytes()) : 0);
  if (context_.swap) {
    report.nvme_bytes = context_.swap->file_nbytes();
    report.nvme_buffer_bytes = context_.swap->buffer_nbytes();
  }
  if (on_gpu(*context_.device)) {
    const device::MemoryMetrics figures = context_.device->memory();
    report.device_bytes = figures.allocated;
    report.device_peak_bytes = figures.peak_allocated;
    report.pinned_bytes = figures.host_allocated;
  }
  report.gathered_bytes +=
      pools_.gathers.held_nbytes() + pools_.fetches.held_nbytes() + pools_.scratch.held_nbytes();
  report.gathered_bytes += pools_.secondary_gathers ? pools_.secondary_gathers->held_nbytes() : 0;
  report.gradient_buffer_bytes = pools_.gradients.held_nbytes() + pools_.sums.held_nbytes();
  report.gradient_buffer_bytes +=
      pools_.gradient_offload ? pools_.gradient_offload->held_nbytes() : 0;
  return report;
}

}  // namespace acc::detail
