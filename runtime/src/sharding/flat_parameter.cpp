#include "sharding/flat_parameter.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <cstring>

namespace acc::sharding {
namespace {

FlatLayout layout_of(const Engine& engine, const std::vector<ParameterRecord>& parameters) {
  std::vector<std::int64_t> numels;
  for (const ParameterRecord& each : parameters) {
    numels.push_back(each.numel);
  }
  // ZeRO 0 keeps everything, yet is reduced and saved in slices.
  const auto& slices = engine.on.shard_optimizer ? engine.groups.shard : engine.groups.world;
  return lay_out(numels, slices->size());
}

std::uint64_t stream_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 1469598103934665603ULL ^ seed;  // FNV-1a, 64 bit
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace

FlatParameter::FlatParameter(Engine& engine, std::vector<ParameterRecord> parameters,
                             bool trainable)
    : engine_(engine),
      parameters_(std::move(parameters)),
      trainable_(trainable),
      layout_(layout_of(engine, parameters_)),
      storage_(make_weight_storage(engine, layout_)),
      keeps_full_gradient_(!engine.on.shard_gradients),
      written_(parameters_.size(), false) {
  if (engine_.low_precision()) {
    master_.resize(static_cast<std::size_t>(owned().numel));
  }
  if (!trainable_) {
    return;
  }
  if (keeps_full_gradient_) {
    gradient_buffer_ = engine_.groups.world->allocate_contribution(
        static_cast<std::size_t>(layout_.padded_numel) * sizeof(float));
  } else {
    auto& group = engine_.groups.replicate ? *engine_.groups.replicate : *engine_.groups.shard;
    shard_gradient_ =
        group.allocate_contribution(static_cast<std::size_t>(layout_.shard_numel) * sizeof(float));
  }
}

// --- weights ---

float* FlatParameter::master() {
  return engine_.low_precision() ? master_.data() : reinterpret_cast<float*>(storage_->own());
}

std::uint16_t* FlatParameter::low_precision() {
  return engine_.low_precision() ? reinterpret_cast<std::uint16_t*>(storage_->own()) : nullptr;
}

void FlatParameter::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Overlap part = overlap(layout_, i, owned());
    if (part.numel > 0) {
      parameters_[i].initializer(stream_of(parameters_[i].name, seed), part.in_parameter,
                                 {master() + part.in_shard, static_cast<std::size_t>(part.numel)});
    }
  }
  round_master();
}

void FlatParameter::round_master() {
  if (std::uint16_t* low = low_precision()) {
    kernels::kernels().f32_to_bf16(master(), low, static_cast<std::size_t>(owned().numel));
  }
}

std::vector<float> FlatParameter::gather_master() {
  std::vector<float> full(static_cast<std::size_t>(layout_.padded_numel));
  if (engine_.on.shard_optimizer) {
    engine_.groups.shard
        ->all_gather(master(), full.data(),
                     static_cast<std::size_t>(layout_.shard_numel) * sizeof(float))
        ->wait();
  } else {
    std::copy(master(), master() + layout_.padded_numel, full.begin());
  }
  return full;
}

void FlatParameter::begin_unshard() {
  if (unsharded_) {
    return;
  }
  unsharded_ = true;
  const bool copies = storage_->begin_unshard();
  if (!storage_->always_full()) {
    engine_.traffic.gathered_elements += layout_.numel;
    engine_.traffic.gathered_elements_moved += copies ? layout_.numel : 0;
    engine_.traffic.gather_calls += 1;
  }
}

const float* FlatParameter::unshard() {
  begin_unshard();
  if (view_ != nullptr) {
    return view_;
  }
  const std::byte* full = storage_->finish_unshard();
  if (!engine_.low_precision()) {
    view_ = reinterpret_cast<const float*>(full);
    return view_;
  }
  widened_ = engine_.scratch.acquire(static_cast<std::size_t>(layout_.padded_numel));
  kernels::kernels().bf16_to_f32(reinterpret_cast<const std::uint16_t*>(full), widened_.data(),
                                 static_cast<std::size_t>(layout_.padded_numel));
  view_ = widened_.data();
  return view_;
}

void FlatParameter::reshard(bool gathers_again) {
  if (!widened_.empty()) {
    engine_.scratch.release(std::move(widened_));
    widened_.clear();
  }
  view_ = nullptr;
  storage_->reshard(gathers_again);
  unsharded_ = false;
}

// --- gradients ---

void FlatParameter::open_gradients() {
  if (!trainable_ || full_gradient_ != nullptr) {
    return;
  }
  const auto numel = static_cast<std::size_t>(layout_.padded_numel);
  if (keeps_full_gradient_) {
    full_gradient_ = gradient_buffer_->as<float>();
    return;
  }
  gradient_buffer_ = engine_.gradients->acquire(numel * nbytes_of(engine_.compute_dtype));
  if (engine_.low_precision()) {
    gradient_scratch_ = engine_.scratch.acquire(numel);
    full_gradient_ = gradient_scratch_.data();
  } else {
    full_gradient_ = gradient_buffer_->as<float>();
  }
}

FlatParameter::Target FlatParameter::gradient(std::size_t index) {
  open_gradients();
  const Target target{full_gradient_ + layout_.offsets[index], written_[index]};
  written_[index] = true;
  return target;
}

void FlatParameter::zero_unwritten() {
  const auto zero = [this](std::int64_t begin, std::int64_t end) {
    std::memset(full_gradient_ + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  };
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    zero(end, layout_.offsets[i]);  // the gap before it
    end = layout_.offsets[i] + layout_.numels[i];
    if (!written_[i]) {
      zero(layout_.offsets[i], end);
    }
  }
  zero(end, layout_.padded_numel);
}

void FlatParameter::close_gradients(bool last) {
  if (!trainable_) {
    return;
  }
  if (!keeps_full_gradient_) {
    open_gradients();  // a unit whose backward wrote nothing still takes part in the reduction
    reduce_to_shard();
  } else if (last) {
    reduce_full();
  }
}

void FlatParameter::reduce_to_shard() {
  zero_unwritten();
  const auto numel = static_cast<std::size_t>(layout_.padded_numel);
  if (engine_.low_precision()) {
    kernels::kernels().f32_to_bf16(full_gradient_, gradient_buffer_->as<std::uint16_t>(), numel);
    engine_.scratch.release(std::move(gradient_scratch_));
    gradient_scratch_.clear();
  }
  full_gradient_ = nullptr;
  std::fill(written_.begin(), written_.end(), false);
  reduction_ = engine_.groups.shard->reduce_scatter(
      gradient_buffer_->data(), shard_gradient_->as<float>(),
      static_cast<std::size_t>(layout_.shard_numel), engine_.compute_dtype,
      {.scale = engine_.gradient_scale, .accumulate = accumulated_});
  accumulated_ = true;
  engine_.gradients->in_flight(std::move(gradient_buffer_), reduction_);
  engine_.traffic.reduced_elements += layout_.numel;
  engine_.traffic.reduce_calls += 1;
  engine_.groups.shard->progress();
}

void FlatParameter::reduce_full() {
  full_gradient_ = gradient_buffer_->as<float>();
  zero_unwritten();
  auto& world = *engine_.groups.world;
  if (engine_.on.shard_optimizer) {
    reduction_ = world.reduce_scatter(full_gradient_, full_gradient_ + owned().offset,
                                      static_cast<std::size_t>(layout_.shard_numel), DType::float32,
                                      {.scale = engine_.gradient_scale});
    engine_.traffic.reduced_elements += layout_.numel;
    engine_.traffic.reduce_calls += 1;
  } else {
    reduction_ = world.all_reduce(full_gradient_, static_cast<std::size_t>(layout_.padded_numel),
                                  engine_.gradient_scale);
    engine_.traffic.all_reduced_elements += layout_.numel;
    engine_.traffic.all_reduce_calls += 1;
  }
  accumulated_ = true;
  full_gradient_ = nullptr;
  world.progress();
}

void FlatParameter::flush_gradients() {
  if (!trainable_) {
    return;
  }
  if (keeps_full_gradient_ ? !accumulated_ : gradients_open() || !accumulated_) {
    close_gradients(true);
  }
}

collectives::WorkPtr FlatParameter::all_reduce_replicas() {
  engine_.traffic.all_reduced_elements += layout_.shard_numel;
  engine_.traffic.all_reduce_calls += 1;
  return engine_.groups.replicate->all_reduce(shard_gradient_->as<float>(),
                                              static_cast<std::size_t>(layout_.shard_numel), 1.0F);
}

const float* FlatParameter::reduced_gradient() const {
  return keeps_full_gradient_ ? gradient_buffer_->as<float>() + owned().offset
                              : shard_gradient_->as<float>();
}

void FlatParameter::wait_reduction() {
  if (reduction_) {
    reduction_->wait_released();
    reduction_.reset();
  }
}

void FlatParameter::settle() {
  wait_reduction();
  storage_->settle();
}

void FlatParameter::forget_gradients() {
  accumulated_ = false;
  std::fill(written_.begin(), written_.end(), false);
}

// --- figures ---

std::int64_t FlatParameter::master_nbytes() const {
  return engine_.low_precision() ? static_cast<std::int64_t>(master_.size() * sizeof(float))
                                 : storage_->held_nbytes();
}

std::int64_t FlatParameter::gradient_nbytes() const {
  if (!trainable_) {
    return 0;
  }
  const auto& buffer = keeps_full_gradient_ ? gradient_buffer_ : shard_gradient_;
  return static_cast<std::int64_t>(buffer->nbytes());
}

std::int64_t FlatParameter::gathered_nbytes() const {
  return engine_.low_precision() ? storage_->held_nbytes() : 0;
}

}  // namespace acc::sharding
