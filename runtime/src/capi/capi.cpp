// SPDX-License-Identifier: Apache-2.0
// The C interface: errors, runtime, ranks. Every function of these files has the same form: it
// checks its output arguments, calls the C++ function inside `guarded`, and writes its outputs
// last, so that they keep their values on failure. Functions that cannot fail return -1 for a NULL
// handle.
#include "capi/capi.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;

// Text and rank of this thread's last failure. If there is no memory for a copy of the text, the
// message is the constant "out of memory".
struct LastError {
  std::string text;
  const char* message = "";
  int rank = -1;

  void set(const char* what, int culprit) noexcept {
    rank = culprit;
    try {
      text = what;
      message = text.c_str();
    } catch (...) {
      message = "out of memory";
    }
  }
};
// One per thread: a process may hold several runtimes, each used by one thread.
thread_local LastError last_error;

// The inverse of status_of, for the functions that name a status.
Errc code_of(acc_status status) noexcept {
  for (int code = 0; code <= static_cast<int>(Errc::internal); ++code) {
    if (status_of(static_cast<Errc>(code)) == status) {
      return static_cast<Errc>(code);
    }
  }
  return Errc::internal;
}

}  // namespace

namespace acc::capi {

void set_last_error(const char* text, int rank) noexcept {
  last_error.set(text, rank);
}

acc_status status_of(Errc code) noexcept {
  switch (code) {
    case Errc::invalid_argument: return ACC_INVALID_ARGUMENT;
    case Errc::config: return ACC_CONFIG;
    case Errc::disagreement: return ACC_DISAGREEMENT;
    case Errc::not_supported: return ACC_NOT_SUPPORTED;
    case Errc::not_found: return ACC_NOT_FOUND;
    case Errc::timeout: return ACC_TIMEOUT;
    case Errc::connection: return ACC_CONNECTION;
    case Errc::protocol: return ACC_PROTOCOL;
    case Errc::process: return ACC_PROCESS;
    case Errc::collective: return ACC_COLLECTIVE;
    case Errc::peer_lost: return ACC_PEER_LOST;
    case Errc::device: return ACC_DEVICE;
    case Errc::out_of_memory: return ACC_OUT_OF_MEMORY;
    case Errc::no_program: return ACC_NOT_FOUND;
    case Errc::not_executable: return ACC_INVALID_ARGUMENT;
    case Errc::internal: return ACC_INTERNAL;
  }
  return ACC_INTERNAL;
}

CallbackResult& callback_result() noexcept {
  thread_local CallbackResult result;
  return result;
}

}  // namespace acc::capi

void acc_callback_returns(const char* error, double value) noexcept {
  CallbackResult& result = callback_result();
  result = {.returned = true, .value = value};
  if (error != nullptr) {
    try {
      result.error = error;
    } catch (...) {
      result.error.emplace();  // no memory for the text
    }
  }
}

void* acc_callback_context(void) noexcept {
  static char context = 0;
  return &context;
}

const char* acc_last_error(void) noexcept {
  return last_error.message;
}

int acc_last_error_rank(void) noexcept {
  return last_error.rank;
}

const char* acc_status_name(acc_status status) noexcept {
  return status == ACC_OK ? "ok" : acc::to_string(code_of(status)).data();
}

int acc_exit_status(acc_status status) noexcept {
  return status == ACC_OK ? 0 : acc::exit_status(Error(code_of(status), ""));
}

acc_status acc_runtime_from_environment(acc_runtime** runtime) noexcept {
  return create(runtime, "runtime", [] { return acc::Runtime::from_environment(); });
}

void acc_runtime_free(acc_runtime* runtime) noexcept {
  release(runtime);
}

int acc_runtime_rank(const acc_runtime* runtime) noexcept {
  return runtime == nullptr ? -1 : runtime->value.rank();
}

int acc_runtime_local_rank(const acc_runtime* runtime) noexcept {
  return runtime == nullptr ? -1 : runtime->value.local_rank();
}

int acc_runtime_activation_checkpointing(const acc_runtime* runtime) noexcept {
  return runtime == nullptr ? -1 : static_cast<int>(runtime->value.activation_checkpointing());
}

acc_status acc_runtime_device(const acc_runtime* runtime, acc_device_info* info) noexcept {
  return guarded([&] {
    const acc::ComputeDevice device = required(runtime, "runtime").value.device();
    give(info,
         {sizeof(acc_device_info),
          device.kind == acc::settings::Device::cuda ? ACC_DEVICE_CUDA : ACC_DEVICE_CPU,
          device.index, device.stream},
         "info");
  });
}

int acc_runtime_world_size(const acc_runtime* runtime) noexcept {
  return runtime == nullptr ? -1 : runtime->value.world_size();
}

int acc_runtime_gradient_accumulation_steps(const acc_runtime* runtime) noexcept {
  return runtime == nullptr ? -1 : runtime->value.gradient_accumulation_steps();
}

acc_status acc_runtime_describe(const acc_runtime* runtime, char* text, size_t capacity) noexcept {
  return guarded([&] {
    const std::string line = required(runtime, "runtime").value.describe();
    if (capacity == 0) {
      throw Error(Errc::invalid_argument, "capacity is 0, expected room for the final NUL");
    }
    const std::size_t count = std::min(line.size(), capacity - 1);
    std::memcpy(&required(text, "text"), line.data(), count);
    text[count] = '\0';
  });
}

acc_status acc_runtime_last_micro_step(const acc_runtime* runtime, const acc_model* model,
                                       int* is_last) noexcept {
  return guarded([&] {
    const acc::Runtime& value = required(runtime, "runtime").value;
    const bool last = value.last_micro_step(required(model, "model").value);
    required(is_last, "is_last") = last ? 1 : 0;
  });
}

acc_status acc_runtime_mean(acc_runtime* runtime, double value, double* mean) noexcept {
  return guarded([&] {
    double& result = required(mean, "mean");
    result = required(runtime, "runtime").value.mean(value);
  });
}

acc_status acc_runtime_all_gather(acc_runtime* runtime, const double* values, size_t count,
                                  double* all) noexcept {
  return guarded([&] {
    const std::span<const double> own(&required(values, "values"), count);
    double& first = required(all, "all");
    const auto gathered = required(runtime, "runtime").value.all_gather(own);
    std::copy(gathered.begin(), gathered.end(), &first);
  });
}

acc_status acc_runtime_abort(acc_runtime* runtime, const char* reason) noexcept {
  return guarded([&] { required(runtime, "runtime").value.abort(string_of(reason, "reason")); });
}

acc_status acc_runtime_report(acc_runtime* runtime, const char* const* names, const double* values,
                              size_t count) noexcept {
  return guarded([&] {
    acc::Runtime& known = required(runtime, "runtime").value;
    std::vector<std::pair<std::string_view, double>> reported;
    for (size_t i = 0; i < count; ++i) {
      const char* const name = (&required(names, "names"))[i];
      reported.emplace_back(&required(name, "names"), (&required(values, "values"))[i]);
    }
    if (!known.report(reported)) {
      throw acc::Error(acc::Errc::invalid_argument,
                       "report: a value was left out: at most 16 names and 16 memory categories of "
                       "at most 31 printable characters are kept; step and memory are at least 0");
    }
  });
}

acc_status acc_runtime_barrier(acc_runtime* runtime) noexcept {
  return guarded([&] { required(runtime, "runtime").value.barrier(); });
}
