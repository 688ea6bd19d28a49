// SPDX-License-Identifier: Apache-2.0
#include "sharding/flat_parameter.hpp"

#include "flight/recorder.hpp"
#include "sharding/host_array.hpp"
#include "sharding/initial_values.hpp"

namespace acc::sharding {
namespace {

FlatLayout layout_of(const Context& context, const std::vector<ParameterRecord>& parameters,
                     FlatTraits traits) {
  std::vector<std::int64_t> numels;
  numels.reserve(parameters.size());
  for (const ParameterRecord& each : parameters) {
    numels.push_back(each.numel);
  }
  // NO_SHARD keeps whole parameters, but reduces and saves them in slices, one per rank. Where the
  // number of ranks changes, the layout does not depend on it.
  const bool is_whole =
      traits.ignored || (context.settings.elastic_replicas && !context.on.shard_optimizer);
  const auto& slices = context.on.shard_optimizer ? context.groups.shard : context.groups.world;
  const int shards = is_whole ? 1 : slices->size();
  const ParameterRecord& first = parameters.front();
  FlatLayout layout =
      context.by_rows
          ? lay_out_rows(first.numel, first.shape.empty() ? 1 : first.shape.front(), shards)
          : lay_out(numels, shards);
  layout.precision = first.precision;
  return layout;
}

}  // namespace

// Two properties decide which copies of the weights exist: the optimizer's dtype may be the
// gathered dtype, and the optimizer's memory may be the storage's memory. Same dtype and memory:
// the storage's own part is the master. Another dtype in the same memory: `master_`, and the update
// rounds into the storage's own part. Another memory: `master_` and, for another dtype, `rounded_`;
// `publish` copies to the storage's own part.
FlatParameter::FlatParameter(const Context& context, Pools& pools, Counters& counters,
                             std::string unit_name, std::vector<ParameterRecord> parameters,
                             FlatTraits traits)
    : context_(context),
      pools_(pools),
      counters_(counters),
      unit_name_(std::move(unit_name)),
      parameters_(std::move(parameters)),
      traits_(traits),
      layout_(layout_of(context, parameters_, traits)),
      stored_(layout_.precision.stored_of(traits.trainable)),
      storage_(make_weight_storage(context, pools, layout_, traits)) {
  if (!master_is_gathered()) {
    master_ = context_.allocate_state(owned().numel, "master weights", stored_);
  }
  if (is_mixed() && context_.offload_optimizer() != storage_->own_offloaded()) {
    const std::size_t nbytes =
        static_cast<std::size_t>(owned().numel) * nbytes_of(layout_.precision.gathered);
    rounded_ = context_.offload_optimizer()
                   ? context_.device->allocate_host(nbytes, "rounded weights")
                   : context_.device->allocate(nbytes, "rounded weights");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    contents_.parts.push_back(
        {static_cast<std::size_t>(layout_.offsets[i] + layout_.numels[i]), parameters_[i].name});
  }
  contents_.unit = unit_name_;
  layout_.unit = unit_name_;
  if (traits.trainable) {
    want_gradient(true);
  }
}

void FlatParameter::want_gradient(bool wanted) {
  if (wanted && !gradient_) {
    traits_.trainable = true;
    gradient_ = make_flat_gradient(context_, pools_, counters_, layout_, owned(), traits_);
  }
  if (gradient_) {
    gradient_->want(wanted);
  }
}

// --- weights ---

/// True if weights are gathered in another dtype than the optimizer's.
bool FlatParameter::is_mixed() const noexcept {
  return stored_ != layout_.precision.gathered;
}

/// True if gathered weights have the optimizer's dtype and memory, so that one copy serves both.
bool FlatParameter::master_is_gathered() const noexcept {
  return !is_mixed() && context_.offload_optimizer() == storage_->own_offloaded();
}

void* FlatParameter::master() {
  return master_ ? master_->data() : storage_->own();
}

/// The memory into which the optimizer rounds the weights; null if the gathered dtype is its own.
void* FlatParameter::rounded() {
  if (!is_mixed()) {
    return nullptr;
  }
  return rounded_ ? rounded_->data() : storage_->own();
}

device::UpdateArrays FlatParameter::update_arrays(std::int64_t step) {
  return {.weights = master(),
          .grads = gradient_->reduced(),
          .first = nullptr,
          .second = nullptr,
          .rounded = rounded(),
          .rounded_dtype = layout_.precision.gathered,
          .weight_dtype = stored_,
          .moment_dtype = layout_.precision.moments,
          .stochastic = layout_.precision.stochastic,
          // A function of seed, step and position only: every layout rounds alike.
          .noise_key = stream_of("rounding", noise_seed_ + static_cast<std::uint64_t>(step)),
          .noise_first = static_cast<std::uint32_t>(owned().offset)};
}

void FlatParameter::round_initial(float* values, std::size_t numel) const {
  const auto through = [&](DType dtype) {
    if (dtype != DType::float32) {
      std::vector<std::uint16_t> rounded(numel);
      kernels::cast(values, DType::float32, rounded.data(), dtype, numel);
      kernels::cast(rounded.data(), dtype, values, DType::float32, numel);
    }
  };
  through(layout_.precision.loaded);
  if (layout_.precision.rounds_initial && layout_.precision.gathered != layout_.precision.loaded) {
    through(layout_.precision.gathered);
  }
}

void FlatParameter::round_master() {
  if (void* const to = rounded()) {
    context_.updater->cast(master(), stored_, to, layout_.precision.gathered,
                           static_cast<std::size_t>(owned().numel), context_.updater->compute());
  }
}

void FlatParameter::publish() {
  const flight::Scope scope(context_.groups.recorder.get(), "publish", unit_name_);
  const auto numel = static_cast<std::size_t>(owned().numel);
  device::Device& device = *context_.device;
  if (rounded_) {
    device.copy(storage_->own(), rounded_->data(), numel * nbytes_of(layout_.precision.gathered),
                device.compute());
  } else if (master_ && !is_mixed()) {
    device.copy(storage_->own(), master_->data(), numel * nbytes_of(stored_), device.compute());
  }
  storage_->publish();
}

void FlatParameter::begin_unshard() {
  const Gathering gathering = storage_->begin_unshard();
  if (gathering.gathers) {
    counters_.traffic.gathered_elements += layout_.numel;
    counters_.traffic.gathered_elements_moved += gathering.copies ? layout_.numel : 0;
    counters_.traffic.secondary_elements += gathering.over_secondary ? layout_.numel : 0;
    counters_.traffic.gather_calls += 1;
  }
}

const void* FlatParameter::unshard() {
  if (shown_) {
    return view_;
  }
  // After `hide`, `full_` and `view_` are still there and only the access is granted again.
  if (full_ == nullptr) {
    const trace::Scope scope(context_.tracer.get(), "wait", "for the gather of", unit_name_);
    full_ = storage_->finish_unshard();
  }
  show(full_, layout_.precision.gathered);
  if (view_ == nullptr) {
    view_ = full_;
    if (layout_.precision.viewed != layout_.precision.gathered) {
      const auto numel = static_cast<std::size_t>(layout_.padded_numel);
      widened_ = pools_.scratch.acquire(numel * nbytes_of(layout_.precision.viewed));
      context_.device->cast(full_, layout_.precision.gathered, widened_->data(),
                            layout_.precision.viewed, numel, context_.device->compute());
      view_ = widened_->data();
    }
  }
  if (widened_) {
    show(widened_->data(), layout_.precision.viewed);
  }
  shown_ = true;
  return view_;
}

void FlatParameter::show(const void* memory, DType dtype) {
  const auto numel = static_cast<std::size_t>(layout_.padded_numel);
  context_.guard->show(memory, numel * nbytes_of(dtype), nbytes_of(dtype), contents_,
                       context_.settings.identity.rank);
}

void FlatParameter::hide() {
  if (shown_) {
    context_.guard->hide(full_);
    context_.guard->hide(view_);
    shown_ = false;
  }
}

void FlatParameter::reshard(NextUse next) {
  storage_->reshard(next);  // before `hide`: a secondary copy is made from the gathered weights
  hide();
  if (widened_) {
    pools_.scratch.release(std::move(widened_));
  }
  full_ = nullptr;
  view_ = nullptr;
}

void FlatParameter::settle() {
  if (gradient_) {
    gradient_->wait_reduction();
  }
  storage_->settle();
}

/// In the order of the constructor.
void FlatParameter::renew() {
  full_ = nullptr;
  view_ = nullptr;
  shown_ = false;
  if (widened_) {
    pools_.scratch.release(std::move(widened_));
  }
  storage_->renew();
  if (gradient_) {
    gradient_->renew();
  }
}

// --- memory report ---

std::int64_t FlatParameter::master_nbytes() const {
  if (!master_) {
    return storage_->held_nbytes();
  }
  return context_.in_file(master_->data()) ? 0 : static_cast<std::int64_t>(master_->nbytes());
}

std::int64_t FlatParameter::gathered_nbytes() const {
  return master_ ? storage_->held_nbytes() : 0;
}

}  // namespace acc::sharding
