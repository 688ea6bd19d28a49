#include "sharding/flat_parameter.hpp"

namespace acc::sharding {
namespace {

FlatLayout layout_of(const Engine& engine, const std::vector<ParameterRecord>& parameters,
                     FlatTraits traits) {
  std::vector<std::int64_t> numels;
  for (const ParameterRecord& each : parameters) {
    numels.push_back(each.numel);
  }
  if (traits.ignored) {
    return lay_out(numels, 1);
  }
  // ZeRO 0 keeps everything, yet is reduced and saved in slices.
  const auto& slices = engine.on.shard_optimizer ? engine.groups.shard : engine.groups.world;
  return lay_out(numels, slices->size());
}

}  // namespace

FlatParameter::FlatParameter(Engine& engine, std::string unit_name,
                             std::vector<ParameterRecord> parameters, FlatTraits traits)
    : engine_(engine),
      unit_name_(std::move(unit_name)),
      parameters_(std::move(parameters)),
      traits_(traits),
      layout_(layout_of(engine, parameters_, traits)),
      storage_(make_weight_storage(engine, layout_, traits)) {
  if (!master_is_gathered()) {
    master_ = engine_.allocate_state(owned().numel, "master weights");
  }
  if (engine_.precision.is_mixed() && engine_.offload_optimizer() != storage_->own_offloaded()) {
    const std::size_t nbytes =
        static_cast<std::size_t>(owned().numel) * nbytes_of(engine_.precision.gathered);
    rounded_ = engine_.offload_optimizer()
                   ? engine_.device->allocate_host(nbytes, "rounded weights")
                   : engine_.device->allocate(nbytes, "rounded weights");
  }
  if (traits.trainable) {
    gradient_ = std::make_unique<FlatGradient>(engine_, layout_, owned(), traits);
  }
}

// --- weights ---

/// Where dtype and place of what is gathered are the optimizer's, there is one copy of both.
bool FlatParameter::master_is_gathered() const noexcept {
  return !engine_.precision.is_mixed() && engine_.offload_optimizer() == storage_->own_offloaded();
}

float* FlatParameter::master() {
  return master_ ? master_->as<float>() : reinterpret_cast<float*>(storage_->own());
}

void* FlatParameter::rounded() {
  if (!engine_.precision.is_mixed()) {
    return nullptr;
  }
  return rounded_ ? rounded_->data() : storage_->own();
}

void FlatParameter::round_master() {
  if (void* const to = rounded()) {
    engine_.updater->cast(master(), DType::float32, to, engine_.precision.gathered,
                          static_cast<std::size_t>(owned().numel), engine_.updater->compute());
  }
}

std::vector<float> FlatParameter::gather_master() {
  device::Device& device = *engine_.device;
  const std::size_t nbytes = static_cast<std::size_t>(owned().numel) * sizeof(float);
  std::vector<float> result(static_cast<std::size_t>(layout_.padded_numel));
  if (!engine_.on.shard_optimizer || traits_.ignored) {
    engine_.updater->copy(result.data(), master(), nbytes, engine_.updater->compute());
    engine_.updater->synchronize();
    return result;
  }
  device::MemoryPtr shard;
  const float* from = master();
  if (engine_.offload_optimizer()) {
    shard = device.allocate(nbytes, "gathered master weights");
    device.copy(shard->data(), from, nbytes, device.compute());
    from = shard->as<float>();
  }
  const auto full = device.allocate(result.size() * sizeof(float), "gathered master weights");
  engine_.groups.shard->all_gather(from, full->data(), nbytes)->wait_released();
  device.copy(result.data(), full->data(), full->nbytes(), device.compute());
  device.synchronize();
  return result;
}

void FlatParameter::publish() {
  const auto numel = static_cast<std::size_t>(owned().numel);
  device::Device& device = *engine_.device;
  if (rounded_) {
    device.copy(storage_->own(), rounded_->data(), numel * nbytes_of(engine_.precision.gathered),
                device.compute());
  } else if (master_ && !engine_.precision.is_mixed()) {
    device.copy(storage_->own(), master_->data(), numel * sizeof(float), device.compute());
  }
  storage_->publish();
}

void FlatParameter::begin_unshard() {
  if (unsharded_) {
    return;
  }
  unsharded_ = true;
  const Gathering gathering = storage_->begin_unshard();
  if (gathering.gathers) {
    engine_.traffic.gathered_elements += layout_.numel;
    engine_.traffic.gathered_elements_moved += gathering.copies ? layout_.numel : 0;
    engine_.traffic.secondary_elements += gathering.over_secondary ? layout_.numel : 0;
    engine_.traffic.gather_calls += 1;
  }
}

const void* FlatParameter::unshard() {
  begin_unshard();
  if (view_ != nullptr) {
    return view_;
  }
  {
    const trace::Scope scope(engine_.tracer.get(), "wait", "for the gather of",
                             unit_name_.empty() ? "root" : unit_name_);
    view_ = storage_->finish_unshard();
  }
  if (engine_.precision.viewed != engine_.precision.gathered) {
    const auto numel = static_cast<std::size_t>(layout_.padded_numel);
    widened_ = engine_.scratch->acquire(numel * nbytes_of(engine_.precision.viewed));
    engine_.device->cast(view_, engine_.precision.gathered, widened_->data(),
                         engine_.precision.viewed, numel, engine_.device->compute());
    view_ = widened_->data();
  }
  return view_;
}

void FlatParameter::reshard(NextUse next) {
  if (widened_) {
    engine_.scratch->release(std::move(widened_));
  }
  view_ = nullptr;
  storage_->reshard(next);
  unsharded_ = false;
}

void FlatParameter::settle() {
  if (gradient_) {
    gradient_->wait_reduction();
  }
  storage_->settle();
}

// --- figures ---

std::int64_t FlatParameter::master_nbytes() const {
  return master_ ? static_cast<std::int64_t>(master_->nbytes()) : storage_->held_nbytes();
}

std::int64_t FlatParameter::gathered_nbytes() const {
  return master_ ? storage_->held_nbytes() : 0;
}

}  // namespace acc::sharding
