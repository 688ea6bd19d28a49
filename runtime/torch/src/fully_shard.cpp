// SPDX-License-Identifier: Apache-2.0
// fully_shard: declares a module's parameters to the runtime.
#include "units.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <acc/base/error.hpp>
#include <acc/base/hash.hpp>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include <algorithm>
#include <cstring>
#include <iterator>
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

/// By DType.
constexpr at::ScalarType kScalarTypes[] = {
    at::kFloat,          at::kBFloat16,      at::kHalf,        at::kDouble,
    at::kByte,           at::kByte,          at::kBool,        at::kChar,
    at::kShort,          at::kUInt16,        at::kInt,         at::kUInt32,
    at::kLong,           at::kUInt64,        at::kComplexHalf, at::kComplexFloat,
    at::kComplexDouble,  at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz,
    at::kFloat8_e5m2fnuz};

/// The runtime's dtype; nothing if it has none.
std::optional<DType> dtype_of(at::ScalarType type) {
  for (int dtype = std::ssize(kScalarTypes) - 1; dtype >= 0; --dtype) {  // uint8 before byte
    if (kScalarTypes[dtype] == type) {
      return static_cast<DType>(dtype);
    }
  }
  return std::nullopt;
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
  return *dtype_of(members[0]->tensor.scalar_type());
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

/// Initial values of parameters and of buffers on the meta device. Those of parameters are the
/// module's tensors, which are freed with this object.
class Source {
 public:
  explicit Source(const ShardOptions& options) : options_(options) {}

  /// Initial values of a parameter. Those of a tensor may differ between ranks; those of the meta
  /// device do not.
  Initializer initializer(const std::string& name, const Tensor& tensor) {
    check(name, tensor);
    if (tensor.is_meta()) {
      return Initializer::pure_once([this, name, meta = tensor.detach()](
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

  /// The values that the program's function gives a tensor of the meta device.
  Tensor values(const std::string& name, const Tensor& meta) {
    check(name, meta);
    return made(name, meta);
  }

 private:
  void check(const std::string& name, const Tensor& tensor) const {
    if (tensor.is_meta() && !options_.initialize) {
      throw invalid("'" + name + "' is on the meta device: set ShardOptions::initialize, which " +
                    "gives it values, or create it on the CPU");
    }
  }

  static void fill(const Tensor& values, std::int64_t offset, std::span<float> out) {
    const auto count = static_cast<std::int64_t>(out.size());
    view(out.data(), {count}, at::kFloat, at::kCPU)
        .copy_(values.reshape(-1).slice(0, offset, offset + count));
  }

  /// The tensor that the program's function makes; kept until another one is asked for.
  const Tensor& made(const std::string& name, const Tensor& meta) {
    if (made_name_ != name || !made_.defined()) {
      const at::NoGradGuard no_grad;
      at::Generator random = at::globalContext().defaultGenerator(at::kCPU);
      const Tensor state = random.get_state();
      random.set_current_seed(options_.seed ^ fnv1a(name));
      const Tensor blank = at::empty_like(meta, at::TensorOptions(at::kCPU));
      std::memset(blank.data_ptr(), kBlank, blank.nbytes());
      made_ = blank;
      options_.initialize(name, made_);
      random.set_state(state);
      made_name_ = name;
      if (made_.sizes() != meta.sizes() || (made_.is_same(blank) && is_blank(blank))) {
        throw invalid("'" + name +
                      "' is on the meta device, and ShardOptions::initialize leaves it, " +
                      "or a part of it, without values or changes its shape");
      }
    }
    return made_;
  }

  static constexpr int kBlank = 255;  ///< bytes that nothing was written to

  /// True if nothing was written to a tensor of blank bytes. Of a part of it only floating point
  /// numbers tell, for which it is a NaN that no computation makes.
  static bool is_blank(const Tensor& tensor) {
    const std::size_t size = tensor.element_size();
    const auto* const bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
    std::size_t blanks = 0;
    for (std::size_t at = 0; at < tensor.nbytes(); at += size) {
      blanks += std::all_of(bytes + at, bytes + at + size,
                            [](unsigned char each) { return each == kBlank; })
                    ? 1
                    : 0;
    }
    const bool tells_parts = tensor.scalar_type() == at::kBool ||
                             (size > 1 && (tensor.is_floating_point() || tensor.is_complex()));
    const auto numel = static_cast<std::size_t>(tensor.numel());
    return blanks > 0 && (tells_parts || (blanks == numel && tensor._version() == 0));
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

/// Declares the buffers, and gives those of the meta device memory and values.
void declare_buffers(Sharding& model, const std::map<std::string, Unit*>& units, Source& source) {
  std::unordered_map<const at::TensorImpl*, const Sharding::SavedBuffer*> known;
  for (const auto& [prefix, module] : distinct_modules(*model.module)) {
    for (const auto& item : module->named_buffers(/*recurse=*/false)) {
      const Tensor& buffer = item.value();
      if (!buffer.defined()) {
        continue;
      }
      const std::string name = joined(prefix, item.key());
      if (const auto first = known.find(buffer.unsafeGetTensorImpl()); first != known.end()) {
        first->second->unit->tie(name, first->second->handle);
        continue;
      }
      const std::optional<DType> dtype = dtype_of(buffer.scalar_type());
      if (!dtype || buffer.layout() != at::kStrided) {
        throw invalid("buffer '" + name + "' is " + c10::toString(buffer.scalar_type()) +
                      ", or not dense, which the runtime does not support");
      }
      const auto become = [&](const Tensor& values) {
        const at::ScalarType type = buffer.scalar_type();
        set_memory(buffer, values.to(model.device, type).contiguous().storage(), type);
      };
      if (buffer.is_meta()) {
        become(source.values(name, buffer).clone());
      } else if (buffer.device() != model.device ||
                 at::has_internal_overlap(buffer) == at::MemOverlap::Yes) {
        become(buffer);
      }
      Unit& unit = common_unit({name}, units);
      const Buffer handle =
          unit.unit.buffer(inside(unit, name), buffer.sizes().vec(), acc::zeros(), *dtype);
      known[buffer.unsafeGetTensorImpl()] = &model.buffers.emplace_back(
          Sharding::SavedBuffer{buffer, name, &unit.unit, handle, {}, {}});
    }
  }
}

/// Gives all buffers rank 0's values, and their memory in the runtime.
void share_buffers(Sharding& model) {
  const at::NoGradGuard no_grad;
  for (Sharding::SavedBuffer& each : model.buffers) {
    const Tensor values = each.tensor.resolve_conj().resolve_neg().contiguous();
    model.model.share(each.name, values.data_ptr(), values.nbytes());
    each.shared = values;
    if (values.data_ptr() != each.tensor.data_ptr()) {
      each.tensor.copy_(values);
    }
    each.memory =
        view(each.unit->data(each.handle), values.sizes(), values.scalar_type(), model.device);
  }
  model.write_buffers();
}

// ---- device

at::Device device_of(const Runtime& runtime) {
  const ComputeDevice found = runtime.device();
  return found.kind == settings::Device::cpu
             ? at::Device(at::kCPU)
             : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(found.index));
}

/// Makes the runtime's device and stream those of torch in this thread.
void compute_on(const ComputeDevice& device) {
  if (device.kind == settings::Device::cpu) {
    return;
  }
  if (!at::globalContext().hasCUDA()) {
    throw invalid("the runtime computes on " + device.name + ", but this LibTorch has no CUDA");
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  const at::Device ours(at::kCUDA, static_cast<at::DeviceIndex>(device.index));
  const c10::impl::VirtualGuardImpl torch(at::kCUDA);
  torch.setDevice(ours);
  // The number of a stream that torch has not made is its address (c10/cuda/CUDAStream.cpp).
  torch.exchangeStream(
      c10::Stream(c10::Stream::UNSAFE, ours, reinterpret_cast<c10::StreamId>(device.stream)));
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  return kScalarTypes[static_cast<std::size_t>(dtype)];
}

Sharding::Sharding(std::shared_ptr<Module> in_module, Runtime in_runtime, DType dtype,
                   const ShardOptions& options)
    : module(std::move(in_module)),
      runtime(std::move(in_runtime)),
      device(device_of(runtime)),
      model(runtime.model(options.seed, {.dtype = dtype,
                                         .bfloat16_on_cpu = true,
                                         .float16_on_cpu = true,
                                         .unused_units = options.unused_units,
                                         .units_as_declared = true,
                                         .autograd = true})),
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
    }
    unit->check_values();
    unit->follow_requires_grad();
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
  for (const auto& unit : units) {
    unit->check_values();
  }
  const auto is_known = [this](const Tensor& buffer) {
    return std::any_of(buffers.begin(), buffers.end(),
                       [&](const SavedBuffer& each) { return each.tensor.is_same(buffer); });
  };
  for (const auto& item : module->named_buffers()) {
    if (item.value().defined() && !is_known(item.value())) {
      throw invalid("buffer '" + item.key() + "' is new since fully_shard: register it before");
    }
  }
  for (const SavedBuffer& each : buffers) {
    if (each.tensor.sizes() != each.memory.sizes() ||
        each.tensor.scalar_type() != each.memory.scalar_type()) {
      throw invalid("buffer '" + each.name + "' has another shape or dtype than in fully_shard");
    }
    each.memory.copy_(each.tensor);
  }
}

void Sharding::read_buffers() {
  const at::NoGradGuard no_grad;
  for (const SavedBuffer& each : buffers) {
    each.tensor.copy_(each.memory);
  }
}

}  // namespace detail

Sharded fully_shard(std::shared_ptr<::torch::nn::Module> module, Runtime runtime,
                    const ShardOptions& options) {
  using namespace detail;
  compute_on(runtime.device());
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
  share_buffers(*model);
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
      ProgramRule{.update = [made](auto shards) { (*made)->update(shards); },
                  .settings = [made] { return *made ? (*made)->settings() : std::string(); },
                  .states = {},
                  .state = [made] { return (*made)->state(); },
                  .load_state = [made](const std::string& state) { (*made)->load(state); }});
  *made = std::make_shared<detail::ShardOptimizer>(optimizer.shards(), state_->device, make);
  return optimizer;
}

void Sharded::save(const std::string& directory, const Optimizer& optimizer,
                   const acc::SavedState& state) const {
  write_buffers();
  state_->runtime.save(directory, state_->model, optimizer, state);
}

acc::SavedState Sharded::load(const std::string& directory, Optimizer& optimizer) const {
  write_buffers();  // a checkpoint of another program may lack some
  acc::SavedState state = state_->runtime.load(directory, state_->model, optimizer);
  read_buffers();
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
  std::map<std::string, at::Tensor> found;
  state_->model.state_dict({.rank0_only = rank0_only}, [&](const FullTensor& full) {
    found[std::string(full.name)] =
        detail::view(full.data, full.shape, detail::scalar_type(full.dtype), at::kCPU).clone();
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
