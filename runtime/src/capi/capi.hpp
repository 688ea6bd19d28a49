// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/own_process.hpp"
#include "acc/runtime.h"
#include "acc/runtime.hpp"
#include "acc/runtime/checkpoint_series.hpp"
#include "acc/runtime/data_order.hpp"
#include "acc/runtime_checkpoint.h"
#include "acc/runtime_data.h"

#include <bit>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

// Implementation of the C interface (acc/runtime.h). A handle is a heap object that contains the
// C++ object; the *_free or *_end function deletes it. A unit belongs to its model, so its handle
// is the address of the acc::Unit and is never freed by the caller.
struct acc_runtime {
  acc::Runtime value;
  acc::OwnProcess owner = {};
};
struct acc_model {
  acc::Model value;
  acc::OwnProcess owner = {};
};
struct acc_optimizer {
  acc::Optimizer value;
  std::shared_ptr<std::string> rule_settings = {};  ///< of acc_optimizer_program
  acc::OwnProcess owner = {};
};
struct acc_forward_use {
  acc::ForwardUse value;
  bool ended = false;  ///< the handle is kept only to refuse later calls (capi_uses.cpp)
  acc::OwnProcess owner = {};
};
struct acc_backward_use {
  acc::BackwardUse value;
  bool ended = false;
  acc::OwnProcess owner = {};
};
struct acc_no_grad {
  std::shared_ptr<void> scope;
  acc::OwnProcess owner = {};
};
struct acc_no_sync {
  std::shared_ptr<void> scope;
  acc::OwnProcess owner = {};
};
struct acc_gradients {
  std::vector<std::shared_ptr<void>> memory;
  acc::OwnProcess owner = {};
};
struct acc_saved_activation {
  acc::SavedActivation value;
  acc::OwnProcess owner = {};
};
struct acc_program_state {
  acc::SavedState value;
};
struct acc_data_order {  // without an owner: the workers of a loader, which are forked, may read it
  acc::DataOrder value;
  acc::ProgramState state = {};  ///< values of the last acc_data_order_state
};
struct acc_checkpoint_series {
  acc::CheckpointSeries value;
  acc::OwnProcess owner = {};
};

namespace acc::capi {

/// Sets the reason of this thread's last failure for acc_last_error. rank: -1 if unknown.
void set_last_error(const char* text, int rank) noexcept;
acc_status status_of(Errc code) noexcept;

/// Runs the body of a C function and converts exceptions to a status. Every function that can fail
/// uses it, so that no exception reaches C code.
template <typename Body>
acc_status guarded(const Body& body) noexcept {
  try {
    body();
    return ACC_OK;
  } catch (const Error& error) {
    set_last_error(error.what(), error.rank().value_or(-1));
    return status_of(error.code());
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory", -1);
    return ACC_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what(), -1);
  } catch (...) {
    set_last_error("an exception of an unknown type", -1);
  }
  return ACC_INTERNAL;
}

/// How a function of the program ended, as it said by acc_callback_returns.
struct CallbackResult {
  bool returned = false;
  std::optional<std::string> error = {};
  double value = 0.0;
};

/// Result of the running function of the program on this thread.
CallbackResult& callback_result() noexcept;

/// Calls a function of the program, which has `context`. Throws Error(process) if it failed, and if
/// it has the context of acc_callback_context and said nothing.
template <typename Call>
CallbackResult call_program(const void* context, const Call& call) {
  const CallbackResult outer = std::exchange(callback_result(), {});
  call();
  CallbackResult result = std::exchange(callback_result(), outer);
  if (result.error) {
    throw Error(Errc::process, *result.error);
  }
  if (context == acc_callback_context() && !result.returned) {
    throw Error(Errc::process, "a function of the program ended without a result");
  }
  return result;
}

/// Returns *pointer. Throws Error(invalid_argument) with the argument's name for NULL, and for a
/// handle in a child made by fork. Functions check their output arguments before they do anything,
/// so a failure leaves nothing behind.
template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) {
    throw Error(Errc::invalid_argument, std::string(name) + " is NULL");
  }
  if constexpr (requires { pointer->owner; }) {
    pointer->owner.check(name);
  }
  return *pointer;
}

/// Gives the program a handle of what `make` returns.
template <typename Handle, typename Make>
acc_status create(Handle** handle, const char* name, const Make& make) {
  return guarded([&] {
    Handle*& place = required(handle, name);
    place = new Handle{make()};
  });
}

/// Deletes a handle; not in a child made by fork, whose copy belongs to the parent.
template <typename Handle>
void release(Handle* handle) noexcept {
  if (handle != nullptr && handle->owner.is_current()) {
    delete handle;
  }
}

inline std::string string_of(const char* text, const char* name) {
  return std::string(&required(text, name));
}

// The C enumerators have the values of acc::DType, so a cast converts them.
static_assert(static_cast<int>(acc::DType::float32) == ACC_FLOAT32);
static_assert(static_cast<int>(acc::DType::bfloat16) == ACC_BFLOAT16);
static_assert(static_cast<int>(acc::DType::float16) == ACC_FLOAT16);
static_assert(static_cast<int>(acc::DType::float64) == ACC_FLOAT64);
static_assert(static_cast<int>(acc::DType::uint8) == ACC_UINT8);
static_assert(static_cast<int>(acc::DType::boolean) == ACC_BOOL);
static_assert(static_cast<int>(acc::DType::uint64) == ACC_UINT64);
static_assert(static_cast<int>(acc::DType::complex128) == ACC_COMPLEX128);
static_assert(static_cast<int>(acc::DType::float8_e8m0fnu) == ACC_FLOAT8_E8M0FNU);

/// last: the greatest dtype that is allowed.
inline acc::DType dtype_of(std::int32_t dtype, const char* name, acc_dtype last = ACC_FLOAT16) {
  if (dtype < ACC_FLOAT32 || dtype > last || dtype == static_cast<std::int32_t>(acc::DType::byte)) {
    throw Error(Errc::invalid_argument,
                std::string(name) + ": unknown dtype " + std::to_string(dtype));
  }
  return static_cast<acc::DType>(dtype);
}

inline acc_unit* handle_of(acc::Unit& unit) noexcept {
  return reinterpret_cast<acc_unit*>(&unit);
}

inline acc::Unit& unit_of(acc_unit* unit) {
  return *reinterpret_cast<acc::Unit*>(&required(unit, "unit"));
}

// The C handles have the layout of the C++ ones, whose fields are private: bit_cast converts them.
static_assert(sizeof(acc_parameter) == sizeof(acc::Parameter));
static_assert(sizeof(acc_buffer) == sizeof(acc::Buffer));

inline acc::Parameter parameter_of(acc_parameter parameter) noexcept {
  return std::bit_cast<acc::Parameter>(parameter);
}

/// Checks the `size` field of a caller's struct. A smaller size comes from a program built with an
/// older header; a larger one from a newer header than this library.
inline void check_struct_size(std::size_t found, std::size_t known, const char* name) {
  if (found < sizeof(std::size_t) || found > known) {
    throw Error(Errc::invalid_argument,
                std::string(name) + ": size is " + std::to_string(found) + ", expected at most " +
                    std::to_string(known) +
                    ": set it with the _INITIALIZER of this library's header");
  }
}

/// Returns the defaults, overwritten by the fields that the caller's header has. given: may be
/// NULL. New fields are only ever added at the end of a struct.
template <typename Config>
Config config_of(const Config* given, Config config, const char* name) {
  static_assert(std::is_trivially_copyable_v<Config>);
  if (given != nullptr) {
    check_struct_size(given->size, sizeof(Config), name);
    std::memcpy(&config, given, given->size);
  }
  return config;
}

/// Visits the elements of an array of structs. The distance between elements is the size in the
/// caller's header, which may be smaller than in this library's.
template <typename T, typename Visit>
void for_each_of(const T* first, std::size_t count, const std::string& name, const Visit& visit) {
  const auto* at = reinterpret_cast<const std::byte*>(first);
  for (std::size_t i = 0; i < count; ++i, at += first->size) {
    const T& each = required(reinterpret_cast<const T*>(at), name.c_str());
    if (each.size != first->size) {
      throw Error(Errc::invalid_argument, name + "[" + std::to_string(i) + "]: size is " +
                                              std::to_string(each.size) + ", that of the first " +
                                              std::to_string(first->size));
    }
    visit(each);
  }
}

/// Reads an array of values of the program.
SavedState state_of(const acc_program_value* values, std::size_t count);
/// Returns a value of the program in C. It points into `name` and `value`.
acc_program_value value_to_c(const std::string& name, const ProgramValue& value, bool of_rank);

/// Copies to the caller's struct the fields that the caller's header has.
template <typename Report>
void give(Report* to, Report report, const char* name) {
  const std::size_t size = required(to, name).size;
  check_struct_size(size, sizeof(Report), name);
  report.size = size;
  std::memcpy(to, &report, size);
}

}  // namespace acc::capi
