// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime.hpp"
#include "api/activation_store.hpp"
#include "api/runtime_state.hpp"

#include <utility>

namespace acc {

using sharding::guarded;

/// Keeps the runtime's state alive: the store is on its device, and failures abort its groups.
class SavedActivation::State {
 public:
  State(std::shared_ptr<detail::RuntimeState> of, const void* data, std::size_t nbytes)
      : runtime(std::move(of)), kept(runtime->activations, data, nbytes) {}

  std::shared_ptr<detail::RuntimeState> runtime;
  detail::ActivationStore::Kept kept;
};

SavedActivation::SavedActivation() = default;
SavedActivation::SavedActivation(SavedActivation&& other) noexcept = default;
SavedActivation& SavedActivation::operator=(SavedActivation&& other) noexcept = default;
SavedActivation::~SavedActivation() {
  if (state_ && !state_->runtime->groups.owner.is_current()) {
    (void)state_.release();  // the memory is the parent's
  }
}
SavedActivation::SavedActivation(std::unique_ptr<State> state) : state_(std::move(state)) {}

void SavedActivation::prefetch() {
  if (state_) {
    guarded(state_->runtime->groups, [&] { state_->kept.prefetch(); });
  }
}

const void* SavedActivation::restore() {
  if (!state_) {
    throw Error(Errc::invalid_argument, "this SavedActivation is empty");
  }
  return guarded(state_->runtime->groups, [&] { return state_->kept.restore(); });
}

bool Runtime::activation_checkpointing() const {
  return state_->settings.sharding.activation_checkpointing;
}

SavedActivation Runtime::keep(const void* data, std::size_t nbytes) {
  if (data == nullptr || nbytes == 0) {
    throw Error(Errc::invalid_argument, "Runtime::keep: no data");
  }
  return guarded(state_->groups, [&] {
    if (!state_->activations) {
      state_->activations = std::make_shared<detail::ActivationStore>(
          state_->compute.device, state_->settings.sharding.activation_checkpointing_offload);
    }
    return SavedActivation(std::make_unique<SavedActivation::State>(state_, data, nbytes));
  });
}

}  // namespace acc
