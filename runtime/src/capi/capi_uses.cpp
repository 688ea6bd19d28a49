// SPDX-License-Identifier: Apache-2.0
// Uses of units (forward, recomputation, backward), no_grad, no_sync and saved activations in C. C
// has no destructors, so a program can call functions with a handle after its end; `end_use` keeps
// the last handles for a while to detect that.
#include "capi/capi.hpp"

#include <deque>

using namespace acc::capi;

namespace {

/// Number of ended handles per thread that are not freed yet. A program that continues to use one
/// of them gets ACC_INVALID_ARGUMENT instead of undefined behaviour.
constexpr std::size_t kKeptHandles = 64;

template <typename Use>
void end_use(Use& use) {
  if (use.ended) {
    throw acc::Error(acc::Errc::invalid_argument, "this scope of a unit has ended already");
  }
  use.ended = true;
  // The handle is taken over before `end`, which may throw: it is released also if ending fails.
  thread_local std::deque<std::unique_ptr<Use>> kept;
  kept.emplace_back(&use);
  if (kept.size() > kKeptHandles) {
    kept.pop_front();
  }
  use.value.end();
}

}  // namespace

acc_status acc_forward_begin(acc_unit* unit, acc_forward_use** use) noexcept {
  return create(use, "use", [&] { return unit_of(unit).forward(); });
}

acc_status acc_recompute_begin(acc_unit* unit, acc_forward_use** use) noexcept {
  return create(use, "use", [&] { return unit_of(unit).recompute(); });
}

acc_status acc_forward_parameter(const acc_forward_use* use, acc_parameter parameter,
                                 const float** data) noexcept {
  return guarded(
      [&] { required(data, "data") = required(use, "use").value[parameter_of(parameter)]; });
}

acc_status acc_forward_raw(const acc_forward_use* use, acc_parameter parameter,
                           const void** data) noexcept {
  return guarded(
      [&] { required(data, "data") = required(use, "use").value.raw(parameter_of(parameter)); });
}

acc_status acc_forward_end(acc_forward_use* use) noexcept {
  return guarded([&] { end_use(required(use, "use")); });
}

acc_status acc_backward_begin(acc_unit* unit, acc_backward_use** use) noexcept {
  return create(use, "use", [&] { return unit_of(unit).backward(); });
}

acc_status acc_backward_parameter(const acc_backward_use* use, acc_parameter parameter,
                                  const float** data) noexcept {
  return guarded(
      [&] { required(data, "data") = required(use, "use").value[parameter_of(parameter)]; });
}

acc_status acc_backward_grad(acc_backward_use* use, acc_parameter parameter, float** data,
                             float* beta) noexcept {
  return guarded([&] {
    float*& place = required(data, "data");
    float& factor = required(beta, "beta");
    const acc::Gradient gradient = required(use, "use").value.grad(parameter_of(parameter));
    place = gradient.data;
    factor = gradient.beta;
  });
}

acc_status acc_backward_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                    float** data) noexcept {
  return guarded([&] {
    float*& place = required(data, "data");
    place = required(use, "use").value.grad_to_add(parameter_of(parameter));
  });
}

acc_status acc_backward_raw(const acc_backward_use* use, acc_parameter parameter,
                            const void** data) noexcept {
  return guarded(
      [&] { required(data, "data") = required(use, "use").value.raw(parameter_of(parameter)); });
}

acc_status acc_backward_raw_grad(acc_backward_use* use, acc_parameter parameter, void** data,
                                 float* beta) noexcept {
  return guarded([&] {
    void*& place = required(data, "data");
    float& factor = required(beta, "beta");
    const acc::RawGradient gradient = required(use, "use").value.raw_grad(parameter_of(parameter));
    place = gradient.data;
    factor = gradient.beta;
  });
}

acc_status acc_backward_raw_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                        void** data) noexcept {
  return guarded([&] {
    void*& place = required(data, "data");
    place = required(use, "use").value.raw_grad_to_add(parameter_of(parameter));
  });
}

acc_status acc_backward_end(acc_backward_use* use) noexcept {
  return guarded([&] { end_use(required(use, "use")); });
}

acc_status acc_no_grad_begin(acc_model* model, acc_no_grad** scope) noexcept {
  return create(scope, "scope", [&] { return required(model, "model").value.no_grad(); });
}

void acc_no_grad_end(acc_no_grad* scope) noexcept {
  release(scope);
}

acc_status acc_no_sync_begin(acc_model* model, acc_no_sync** scope) noexcept {
  return create(scope, "scope", [&] { return required(model, "model").value.no_sync(); });
}

void acc_no_sync_end(acc_no_sync* scope) noexcept {
  release(scope);
}

acc_status acc_model_zero_grad(acc_model* model) noexcept {
  return guarded([&] { required(model, "model").value.zero_grad(); });
}

acc_status acc_unit_set_requires_grad(acc_unit* unit, acc_parameter parameter,
                                      int requires_grad) noexcept {
  return guarded(
      [&] { unit_of(unit).set_requires_grad(parameter_of(parameter), requires_grad != 0); });
}

acc_status acc_unit_hold_gradients(acc_unit* unit, int held) noexcept {
  return guarded([&] { unit_of(unit).hold_gradients(held != 0); });
}

acc_status acc_runtime_keep(acc_runtime* runtime, const void* data, size_t nbytes,
                            acc_saved_activation** saved) noexcept {
  return create(saved, "saved",
                [&] { return required(runtime, "runtime").value.keep(data, nbytes); });
}

acc_status acc_saved_activation_prefetch(acc_saved_activation* saved) noexcept {
  return guarded([&] { required(saved, "saved").value.prefetch(); });
}

acc_status acc_saved_activation_restore(acc_saved_activation* saved, const void** data) noexcept {
  return guarded([&] {
    const void*& result = required(data, "data");
    result = required(saved, "saved").value.restore();
  });
}

void acc_saved_activation_free(acc_saved_activation* saved) noexcept {
  release(saved);
}
