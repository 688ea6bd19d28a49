// SPDX-License-Identifier: Apache-2.0
// fully_shard: declares a module's parameters to the runtime.
#include "units.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <acc/base/error.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace acc::torch {

namespace detail {

using ::torch::nn::Module;

namespace {

/// Gives access to a module's dictionary of its own parameters; public functions return copies.
struct Access : Module {
  static constexpr auto kParameters = &Access::parameters_;
};

::torch::OrderedDict<std::string, Tensor>& parameters_of(Module& module) {
  return module.*Access::kParameters;
}

Error invalid(const std::string& message) {
  return {Errc::invalid_argument, message};
}

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

/// "Block" for a module of class ns::BlockImpl, as Python and the launcher's configuration name it.
std::string class_name_of(const Module& module) {
  std::string name = module.name();
  name = name.substr(0, name.find('<'));
  const std::size_t scope = name.rfind("::");
  name = scope == std::string::npos ? name : name.substr(scope + 2);
  return name.ends_with("Impl") ? name.substr(0, name.size() - 4) : name;
}

struct NamedModule {
  std::string name;
  Module* module;
};

/// All modules, parents before their children. A module that is registered in several places occurs
/// under each name.
std::vector<NamedModule> named_modules(const Module& root) {
  std::vector<NamedModule> found;
  for (const auto& item : root.named_modules()) {
    found.push_back({item.key(), item.value().get()});
  }
  return found;
}

/// Without the later names of a module that is registered in several places.
std::vector<NamedModule> distinct_modules(const Module& root) {
  std::vector<NamedModule> found = named_modules(root);
  std::set<const Module*> seen;
  std::erase_if(found, [&](const NamedModule& each) { return !seen.insert(each.module).second; });
  return found;
}

// ---- choice of units

/// Classes of LibTorch whose forward calls its children, or uses their parameters, itself.
template <typename... Classes>
bool is_one_of(const Module& module) {
  return ((module.as<Classes>() != nullptr) || ...);
}
bool is_opaque(const Module& module) {
  namespace nn = ::torch::nn;
  return is_one_of<nn::MultiheadAttentionImpl, nn::TransformerEncoderLayerImpl,
                   nn::TransformerDecoderLayerImpl, nn::AdaptiveLogSoftmaxWithLossImpl>(module);
}

/// Modules that cannot be units, with the opaque module that contains each.
std::map<const Module*, const Module*> inside_opaque(const std::vector<NamedModule>& modules) {
  std::map<const Module*, const Module*> found;
  for (const NamedModule& each : modules) {
    if (is_opaque(*each.module)) {
      for (const auto& inner : each.module->modules(/*include_self=*/false)) {
        found.try_emplace(inner.get(), each.module);
      }
    }
  }
  return found;
}

/// The elements of each ModuleList.
std::set<const Module*> candidates(const std::vector<NamedModule>& modules) {
  std::set<const Module*> found;
  for (const NamedModule& each : modules) {
    if (const auto* list = each.module->as<::torch::nn::ModuleListImpl>()) {
      std::for_each(list->begin(), list->end(),
                    [&](const auto& element) { found.insert(element.get()); });
    }
  }
  return found;
}

/// The modules that ShardOptions::units names.
std::set<const Module*> chosen_by_name(const std::vector<NamedModule>& modules,
                                       const std::vector<std::string>& wanted) {
  const auto excluded = inside_opaque(modules);
  std::set<const Module*> chosen;
  for (const std::string& each : wanted) {
    const std::size_t before = chosen.size();
    for (const NamedModule& module : modules) {
      const auto outer = excluded.find(module.module);
      if (module.name == each && outer != excluded.end()) {
        throw invalid("units: '" + each + "' is in a " + class_name_of(*outer->second) +
                      ", whose forward calls it directly: choose the outer module");
      }
      if (outer == excluded.end() &&
          (module.name == each || class_name_of(*module.module) == each)) {
        chosen.insert(module.module);
      }
    }
    if (chosen.size() == before) {
      std::set<std::string> classes;
      for (const NamedModule& module : modules) {
        classes.insert(class_name_of(*module.module));
      }
      std::string list;
      for (const std::string& name : classes) {
        list += (list.empty() ? "" : ", ") + name;
      }
      throw invalid("units: '" + each + "' is no name or class of a submodule; its classes are " +
                    list);
    }
  }
  return chosen;
}

/// The modules that the launcher's wrap policy chooses.
std::set<const Module*> chosen_by_policy(const std::vector<NamedModule>& modules,
                                         const Runtime& runtime) {
  const std::set<const Module*> offered = candidates(modules);
  std::unordered_map<const at::TensorImpl*, std::string> first_names;
  std::vector<ModuleInfo> infos;
  for (const auto& [name, module] : modules) {
    ModuleInfo& info = infos.emplace_back(ModuleInfo{.name = name,
                                                     .class_name = class_name_of(*module),
                                                     .is_candidate = offered.contains(module)});
    for (const auto& item : parameters_of(*module)) {
      const auto first =
          first_names.try_emplace(item.value().unsafeGetTensorImpl(), joined(name, item.key()));
      info.parameters[first.first->second] = item.value().numel();
    }
  }
  const std::vector<bool> is_unit = runtime.wrap(infos);
  const auto excluded = inside_opaque(modules);
  std::set<const Module*> chosen;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (is_unit[i] && !excluded.contains(modules[i].module)) {
      chosen.insert(modules[i].module);
    }
  }
  return chosen;
}

// ---- parameters

/// In C++, `head->weight = embedding->weight` changes the member alone: the module's dictionary
/// keeps a tensor that nothing uses. Makes it a tied parameter, as in Python.
template <typename Impl>
void tie_assigned_weight(Module& module) {
  if (const auto* const typed = module.as<Impl>(); typed != nullptr && typed->weight.defined()) {
    if (Tensor* const registered = parameters_of(module).find("weight")) {
      *registered = typed->weight;
    }
  }
}

/// Distinct parameters in the order of the module, with their names and places.
std::vector<std::unique_ptr<Member>> distinct_parameters(const Module& root) {
  std::vector<std::unique_ptr<Member>> found;
  std::unordered_map<const at::TensorImpl*, Member*> members;
  for (const auto& [prefix, module] : named_modules(root)) {
    for (const auto& item : parameters_of(*module)) {
      if (!item.value().defined()) {
        continue;
      }
      Member*& member = members[item.value().unsafeGetTensorImpl()];
      if (member == nullptr) {
        member = found.emplace_back(std::make_unique<Member>()).get();
        member->tensor = item.value();
        member->trains = item.value().requires_grad();
      }
      member->names.push_back(joined(prefix, item.key()));
      member->slots.push_back({module, item.key()});
    }
  }
  return found;
}

DType dtype_of(const std::vector<std::unique_ptr<Member>>& members) {
  if (members.empty()) {
    throw invalid("the module has no parameters to shard");
  }
  for (const auto& each : members) {
    const at::ScalarType dtype = each->tensor.scalar_type();
    if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
      throw invalid("parameter '" + each->names[0] + "' is " + c10::toString(dtype) +
                    ", expected Float, BFloat16 or Half");
    }
    if (dtype != members[0]->tensor.scalar_type()) {
      throw invalid("all parameters must have one dtype, found " +
                    std::string(c10::toString(members[0]->tensor.scalar_type())) + " ('" +
                    members[0]->names[0] + "'), " + c10::toString(dtype) + " ('" + each->names[0] +
                    "')");
    }
  }
  switch (members[0]->tensor.scalar_type()) {
    case at::kBFloat16: return DType::bfloat16;
    case at::kHalf: return DType::float16;
    default: return DType::float32;
  }
}

std::vector<std::string> enclosing_units(const std::string& name,
                                         const std::map<std::string, Unit*>& units) {
  std::vector<std::string> found = {""};
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (units.contains(name.substr(0, dot))) {
      found.push_back(name.substr(0, dot));
    }
  }
  return found;
}

/// The innermost unit that contains all names.
Unit& common_unit(const std::vector<std::string>& names,
                  const std::map<std::string, Unit*>& units) {
  std::vector<std::string> common = enclosing_units(names[0], units);
  for (const std::string& name : names) {
    const std::vector<std::string> other = enclosing_units(name, units);
    std::erase_if(common, [&](const std::string& each) {
      return std::find(other.begin(), other.end(), each) == other.end();
    });
  }
  return *units.at(common.back());
}

std::string inside(const Unit& unit, const std::string& full_name) {
  return unit.name.empty() ? full_name : full_name.substr(unit.name.size() + 1);
}

/// Initial values of the runtime's parameters and buffers: those of the module's tensors, which are
/// freed with this object.
class Source {
 public:
  explicit Source(const ShardOptions& options) : options_(options) {}

  /// Values of a tensor may differ between ranks; those of the meta device do not.
  Initializer initializer(const std::string& name, const Tensor& tensor) {
    if (tensor.is_meta()) {
      if (!options_.initialize) {
        throw invalid("'" + name + "' is on the meta device: set ShardOptions::initialize, which " +
                      "gives it values, or create it on the CPU");
      }
      return Initializer::pure([this, name, meta = tensor.detach()](
                                   std::uint64_t, std::int64_t offset, std::span<float> out) {
        fill(made(name, meta), offset, out);
      });
    }
    values_.push_back(tensor.detach());
    return {
        [this, at = values_.size() - 1](std::uint64_t, std::int64_t offset, std::span<float> out) {
          fill(values_[at], offset, out);
        }};
  }

 private:
  static void fill(const Tensor& values, std::int64_t offset, std::span<float> out) {
    const auto count = static_cast<std::int64_t>(out.size());
    view(out.data(), {count}, at::kFloat, at::kCPU)
        .copy_(values.reshape(-1).slice(0, offset, offset + count));
  }

  /// FNV-1a, which is the same on all ranks.
  static std::uint64_t hash(const std::string& text) {
    std::uint64_t value = 14695981039346656037U;
    for (const char each : text) {
      value = (value ^ static_cast<unsigned char>(each)) * 1099511628211U;
    }
    return value;
  }

  /// The tensor that the program's function makes; kept until another one is asked for.
  const Tensor& made(const std::string& name, const Tensor& meta) {
    if (made_name_ != name || !made_.defined()) {
      const at::NoGradGuard no_grad;
      at::Generator random = at::globalContext().defaultGenerator(at::kCPU);
      const Tensor state = random.get_state();
      random.set_current_seed(options_.seed ^ hash(name));
      made_ = at::empty_like(meta, at::TensorOptions(at::kCPU));
      options_.initialize(name, made_);
      random.set_state(state);
      made_name_ = name;
    }
    return made_;
  }

  const ShardOptions& options_;
  std::vector<Tensor> values_;
  std::string made_name_;
  Tensor made_;
};

void declare_parameters(Sharding& model, std::vector<std::unique_ptr<Member>> members,
                        const std::map<std::string, Unit*>& units, Source& source,
                        const ShardOptions& options) {
  for (auto& member : members) {
    const std::string& name = member->names[0];
    const Tensor& tensor = member->tensor;
    if (tensor.numel() == 0) {
      throw invalid("parameter '" + name + "' has no elements");
    }
    if (!tensor.is_meta() && !tensor.is_cpu() && tensor.device().type() != model.device.type()) {
      throw invalid("parameter '" + name + "' is on " + tensor.device().str() +
                    ", but the runtime computes on " + model.device.str());
    }
    Unit& unit = common_unit(member->names, units);
    member->handle = unit.unit.parameter(
        inside(unit, name), tensor.sizes().vec(), source.initializer(name, tensor),
        {.trainable = member->trains,
         .weight_decay = !options.weight_decay || options.weight_decay(name, tensor)});
    for (std::size_t i = 1; i < member->names.size(); ++i) {
      unit.unit.tie(member->names[i], member->handle);
    }
    unit.members.push_back(std::move(member));
  }
}

void declare_buffers(Sharding& model, const std::map<std::string, Unit*>& units, Source& source) {
  for (const auto& [prefix, module] : distinct_modules(*model.module)) {
    for (const auto& item : module->named_buffers(/*recurse=*/false)) {
      const Tensor& buffer = item.value();
      if (!buffer.defined() || buffer.numel() == 0) {
        continue;
      }
      const std::string name = joined(prefix, item.key());
      if (buffer.is_complex()) {
        throw invalid("buffer '" + name + "' is complex, which checkpoints cannot hold");
      }
      Unit& unit = common_unit({name}, units);
      const Buffer handle = unit.unit.buffer(inside(unit, name), buffer.sizes().vec(),
                                             source.initializer(name, buffer));
      model.buffers.push_back({buffer, name, &unit.unit, handle});
    }
  }
}

/// Gives buffers of the meta device memory, and `read_buffers` values.
void allocate_buffers(Sharding& model) {
  for (const auto& [_, module] : distinct_modules(*model.module)) {
    for (const Tensor& buffer : module->buffers(/*recurse=*/false)) {
      if (buffer.is_meta()) {
        set_memory(buffer,
                   at::empty(buffer.sizes(), buffer.options().device(model.device)).storage(),
                   buffer.scalar_type());
      }
    }
  }
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::bfloat16: return at::kBFloat16;
    case DType::float16: return at::kHalf;
    case DType::float64: return at::kDouble;
    case DType::byte: return at::kByte;
    case DType::float32: break;
  }
  return at::kFloat;
}

Sharding::Sharding(std::shared_ptr<Module> in_module, Runtime in_runtime, DType dtype,
                   const ShardOptions& options)
    : module(std::move(in_module)),
      runtime(std::move(in_runtime)),
      model(runtime.model(options.seed, {.dtype = dtype,
                                         .bfloat16_on_cpu = true,
                                         .float16_on_cpu = true,
                                         .unused_units = options.unused_units,
                                         .units_as_declared = true,
                                         .float32_buffers = true})),
      compute_dtype(scalar_type(model.compute_dtype())),
      casts_inputs(compute_dtype != scalar_type(dtype)) {}

void Sharding::remember_module() {
  for (const auto& [name, each] : distinct_modules(*module)) {
    sizes_.push_back({name, each, parameters_of(*each).size(), each->children().size()});
  }
}

void Sharding::check_module() const {
  if (backwards_) {
    throw invalid(
        "a backward of this module has failed: its scopes are still open, and the module "
        "cannot be used any more");
  }
  for (const auto& unit : units) {
    for (const auto& member : unit->members) {
      for (const Slot& slot : member->slots) {
        const Tensor* const found = parameters_of(*slot.module).find(slot.attribute);
        if (found == nullptr || !found->is_same(member->tensor)) {
          throw invalid("parameter '" + member->names[0] +
                        "' was replaced after fully_shard: change the module before it is sharded");
        }
      }
      if (member->tensor.requires_grad() != member->trains) {
        throw invalid("requires_grad of parameter '" + member->names[0] + "' was " +
                      (member->trains ? "true" : "false") +
                      " in fully_shard: freeze parameters before the module is sharded");
      }
    }
  }
  for (const Size& each : sizes_) {
    if ((each.module->*Access::kParameters).size() != each.parameters ||
        each.module->children().size() != each.children) {
      throw invalid("module '" + each.name + "' has got or lost a parameter or a submodule after " +
                    "fully_shard: change it before it is sharded");
    }
  }
}

void Sharding::write_buffers() {
  for (const SavedBuffer& each : buffers) {
    view(each.unit->data(each.handle), each.tensor.sizes(), at::kFloat, device).copy_(each.tensor);
  }
}

void Sharding::read_buffers() {
  const at::NoGradGuard no_grad;
  for (const SavedBuffer& each : buffers) {
    each.tensor.copy_(view(each.unit->data(each.handle), each.tensor.sizes(), at::kFloat, device));
  }
}

}  // namespace detail

Sharded fully_shard(std::shared_ptr<::torch::nn::Module> module, Runtime runtime,
                    const ShardOptions& options) {
  using namespace detail;
  if (runtime.device().kind != plugins::Device::cpu) {
    throw invalid("acc::torch computes on the CPU, and this runtime on " + runtime.device().name +
                  ": start it with --cpu, or use the Python package");
  }
  const std::vector<NamedModule> modules = distinct_modules(*module);
  for (const NamedModule& each : modules) {
    if (unit_of(*each.module) != nullptr) {
      throw invalid(class_name_of(*module) + " is sharded already");
    }
    tie_assigned_weight<::torch::nn::LinearImpl>(*each.module);
    tie_assigned_weight<::torch::nn::EmbeddingImpl>(*each.module);
  }
  std::vector<std::unique_ptr<Member>> members = distinct_parameters(*module);
  const auto model = std::make_shared<Sharding>(module, runtime, dtype_of(members), options);
  const std::set<const Module*> chosen =
      options.units ? chosen_by_name(modules, *options.units) : chosen_by_policy(modules, runtime);
  std::map<std::string, Unit*> by_name;
  for (const auto& [name, each] : modules) {
    if (each == module.get() || chosen.contains(each)) {
      acc::Unit& unit = each == module.get() ? model->model.root(name, class_name_of(*each))
                                             : model->model.unit(name, class_name_of(*each));
      model->units.push_back(std::make_unique<Unit>(*model, *each, name, unit));
      by_name[name] = model->units.back().get();
    }
  }
  Source source(options);
  declare_parameters(*model, std::move(members), by_name, source, options);
  declare_buffers(*model, by_name, source);
  for (const auto& unit : model->units) {
    unit->install();  // the first call initialises the runtime's parameters
  }
  allocate_buffers(*model);
  model->read_buffers();
  model->remember_module();
  return Sharded(model);
}

Model& Sharded::model() const {
  return state_->model;
}

Optimizer Sharded::optimizer(const MakeOptimizer& make) const {
  // The rule runs from the first step on, and the shards are known when there is an optimizer.
  const auto made = std::make_shared<std::shared_ptr<detail::ShardOptimizer>>();
  Optimizer optimizer = state_->model.optimizer(
      ProgramRule{[made](std::span<const ParameterShard> shards) { (*made)->update(shards); }});
  *made = std::make_shared<detail::ShardOptimizer>(optimizer.shards(), state_->device, make);
  state_->optimizer = *made;
  return optimizer;
}

namespace {

constexpr const char* kOptimizerState = "acc.libtorch_optimizer";

}  // namespace

void Sharded::save(const std::string& directory, const Optimizer& optimizer,
                   const acc::SavedState& state) const {
  write_buffers();
  acc::SavedState saved = state;
  if (const auto of_torch = state_->optimizer.lock()) {
    saved.of_rank[kOptimizerState] = of_torch->state();
  }
  state_->runtime.save(directory, state_->model, optimizer, saved);
}

acc::SavedState Sharded::load(const std::string& directory, Optimizer& optimizer) const {
  acc::SavedState state = state_->runtime.load(directory, state_->model, optimizer);
  read_buffers();
  const auto found = state.of_rank.extract(kOptimizerState);
  if (const auto of_torch = state_->optimizer.lock()) {
    if (found.empty()) {
      throw Error(Errc::config, directory + " has no state of an optimizer of torch for rank " +
                                    std::to_string(state_->runtime.rank()) +
                                    ": load its weights alone with load_weights");
    }
    of_torch->load(std::get<std::string>(found.mapped()));
  }
  return state;
}

void Sharded::load_weights(const std::string& path) const {
  write_buffers();
  state_->model.load_weights(path);
  read_buffers();
}

void Sharded::export_weights(const std::string& path, const ExportOptions& options) const {
  write_buffers();
  state_->model.export_weights(path, options);
}

std::map<std::string, at::Tensor> Sharded::state_dict(bool rank0_only) const {
  write_buffers();
  std::map<std::string, at::ScalarType> buffers;
  for (const auto& each : state_->buffers) {
    buffers[each.name] = each.tensor.scalar_type();
  }
  std::map<std::string, at::Tensor> found;
  state_->model.state_dict({.rank0_only = rank0_only}, [&](const FullTensor& full) {
    const std::string name(full.name);
    const at::Tensor values =
        detail::view(full.data, full.shape, detail::scalar_type(full.dtype), at::kCPU).clone();
    found[name] = buffers.contains(name) ? values.to(buffers[name]) : values;
  });
  return found;
}

void Sharded::write_buffers() const {
  state_->write_buffers();
}

void Sharded::read_buffers() const {
  state_->read_buffers();
}

std::vector<std::string> Sharded::unit_names() const {
  std::vector<std::string> names;
  for (const auto& unit : state_->units) {
    names.push_back(unit->name);
  }
  return names;
}

}  // namespace acc::torch
