// SPDX-License-Identifier: Apache-2.0
// Weights, checkpoints and series in C. Values of the program are arrays of structs whose size the
// caller's header determines (`for_each_of`).
#include "capi/capi.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;

acc::ProgramValue value_of(const acc_program_value& value) {
  switch (value.kind) {
    case ACC_VALUE_INTEGER: return value.integer;
    case ACC_VALUE_REAL: return value.real;
    case ACC_VALUE_BYTES:
      return value.num_bytes == 0
                 ? std::string()
                 : std::string(static_cast<const char*>(&required(
                                   static_cast<const char*>(value.bytes), "values[].bytes")),
                               value.num_bytes);
  }
  throw Error(Errc::invalid_argument, "values[].kind: unknown kind " + std::to_string(value.kind));
}

}  // namespace

acc::SavedState acc::capi::state_of(const acc_program_value* values, std::size_t count) {
  acc::SavedState state;
  for_each_of(values, count, "values", [&](const acc_program_value& each) {
    const auto v = config_of<acc_program_value>(&each, ACC_PROGRAM_VALUE_INITIALIZER, "values[]");
    acc::ProgramState& to = v.of_rank != 0 ? state.of_rank : state.program;
    to[string_of(v.name, "values[].name")] = value_of(v);
  });
  return state;
}

acc_program_value acc::capi::value_to_c(const std::string& name, const acc::ProgramValue& value,
                                        bool of_rank) {
  acc_program_value result = ACC_PROGRAM_VALUE_INITIALIZER;
  result.name = name.c_str();
  result.of_rank = of_rank ? 1 : 0;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    result.integer = *integer;
  } else if (const auto* real = std::get_if<double>(&value)) {
    result.kind = ACC_VALUE_REAL;
    result.real = *real;
  } else {
    const auto& text = std::get<std::string>(value);
    result.kind = ACC_VALUE_BYTES;
    result.bytes = text.data();
    result.num_bytes = text.size();
  }
  return result;
}

namespace {

void get_value(const acc::ProgramState& values, const char* name, bool of_rank,
               acc_program_value* to) {
  const auto found = values.find(string_of(name, "name"));
  if (found == values.end()) {
    throw Error(Errc::not_found, "the checkpoint has no " +
                                     std::string(of_rank ? "value of this rank" : "program value") +
                                     " '" + name + "'");
  }
  give(to, value_to_c(found->first, found->second, of_rank), "value");
}

std::vector<acc::Trained> trained_of(const acc_trained* parts, std::size_t count) {
  std::vector<acc::Trained> all;
  for (std::size_t i = 0; i < count; ++i) {
    const acc_trained& each = (&required(parts, "parts"))[i];
    all.push_back({required(each.model, "parts[].model").value,
                   required(each.optimizer, "parts[].optimizer").value});
  }
  return all;
}

// Returns the loaded values to a caller that wants them.
void give_state(acc_program_state** to, acc::SavedState state) {
  if (to != nullptr) {
    *to = new acc_program_state{std::move(state)};
  }
}

// Copies a text with its final NUL.
void give_text(char* to, std::size_t capacity, const std::string& text) {
  if (text.size() >= capacity) {
    throw Error(Errc::invalid_argument, "capacity is " + std::to_string(capacity) +
                                            ", expected at least " +
                                            std::to_string(text.size() + 1));
  }
  std::memcpy(to, text.c_str(), text.size() + 1);
}

// Calls the program's function. The name is copied, because a string_view has no final NUL.
void give_tensor(const acc::FullTensor& tensor, acc_visit_function visit, void* context) {
  const std::string name(tensor.name);
  const acc_full_tensor given{sizeof(acc_full_tensor),
                              name.c_str(),
                              tensor.shape.data(),
                              tensor.shape.size(),
                              static_cast<std::int32_t>(tensor.dtype),
                              tensor.data};
  call_program(context, [&] { visit(&given, context); });
}

}  // namespace

acc_status acc_model_load_weights(acc_model* model, const char* path) noexcept {
  return guarded([&] { required(model, "model").value.load_weights(string_of(path, "path")); });
}

acc_status acc_model_export_weights(acc_model* model, const char* path,
                                    const acc_export_config* config) noexcept {
  return guarded([&] {
    const auto c = config_of<acc_export_config>(config, ACC_EXPORT_CONFIG_INITIALIZER, "config");
    acc::ExportOptions options{.dtype = std::nullopt, .max_shard_nbytes = c.max_shard_nbytes};
    if (c.dtype >= 0) {
      options.dtype = dtype_of(c.dtype, "config.dtype");
    }
    required(model, "model").value.export_weights(string_of(path, "path"), options);
  });
}

acc_status acc_model_state_dict(acc_model* model, const acc_state_dict_config* config,
                                acc_visit_function visit, void* context) noexcept {
  return guarded([&] {
    const auto c =
        config_of<acc_state_dict_config>(config, ACC_STATE_DICT_CONFIG_INITIALIZER, "config");
    const acc_visit_function call = &required(visit, "visit");
    required(model, "model")
        .value.state_dict(
            {.rank0_only = c.rank0_only != 0, .offload_to_cpu = c.offload_to_cpu != 0},
            [&](const acc::FullTensor& tensor) { give_tensor(tensor, call, context); });
  });
}

acc_status acc_runtime_save(acc_runtime* runtime, const char* directory, const acc_model* model,
                            const acc_optimizer* optimizer, const acc_program_value* values,
                            size_t count) noexcept {
  return guarded([&] {
    required(runtime, "runtime")
        .value.save(string_of(directory, "directory"), required(model, "model").value,
                    required(optimizer, "optimizer").value, state_of(values, count));
  });
}

acc_status acc_runtime_save_async(acc_runtime* runtime, const char* directory,
                                  const acc_model* model, const acc_optimizer* optimizer,
                                  const acc_program_value* values, size_t count, int32_t refuse,
                                  int32_t* saved) noexcept {
  return guarded([&] {
    const bool done =
        required(runtime, "runtime")
            .value.save_async(string_of(directory, "directory"), required(model, "model").value,
                              required(optimizer, "optimizer").value, state_of(values, count),
                              refuse != 0 ? acc::IfSaving::refuse : acc::IfSaving::wait);
    if (saved != nullptr) {
      *saved = done ? 1 : 0;
    }
  });
}

acc_status acc_runtime_saving(const acc_runtime* runtime, int32_t* saving) noexcept {
  return guarded(
      [&] { required(saving, "saving") = required(runtime, "runtime").value.saving() ? 1 : 0; });
}

acc_status acc_runtime_wait_save(acc_runtime* runtime) noexcept {
  return guarded([&] { required(runtime, "runtime").value.wait_save(); });
}

acc_status acc_runtime_load(acc_runtime* runtime, const char* directory, acc_model* model,
                            acc_optimizer* optimizer, acc_program_state** state) noexcept {
  return guarded([&] {
    give_state(state,
               required(runtime, "runtime")
                   .value.load(string_of(directory, "directory"), required(model, "model").value,
                               required(optimizer, "optimizer").value));
  });
}

acc_status acc_runtime_save_all(acc_runtime* runtime, const char* directory,
                                const acc_trained* parts, size_t num_parts,
                                const acc_program_value* values, size_t count) noexcept {
  return guarded([&] {
    required(runtime, "runtime")
        .value.save(string_of(directory, "directory"), trained_of(parts, num_parts),
                    state_of(values, count));
  });
}

acc_status acc_runtime_load_all(acc_runtime* runtime, const char* directory,
                                const acc_trained* parts, size_t num_parts,
                                acc_program_state** state) noexcept {
  return guarded([&] {
    give_state(state,
               required(runtime, "runtime")
                   .value.load(string_of(directory, "directory"), trained_of(parts, num_parts)));
  });
}

acc_status acc_program_state_get(const acc_program_state* state, const char* name,
                                 acc_program_value* value) noexcept {
  return guarded([&] { get_value(required(state, "state").value.program, name, false, value); });
}

acc_status acc_program_state_get_of_rank(const acc_program_state* state, const char* name,
                                         acc_program_value* value) noexcept {
  return guarded([&] { get_value(required(state, "state").value.of_rank, name, true, value); });
}

void acc_program_state_free(acc_program_state* state) noexcept {
  delete state;
}

acc_status acc_checkpoint_series_create(acc_runtime* runtime, const char* folder,
                                        const acc_checkpoint_series_config* config,
                                        acc_checkpoint_series** series) noexcept {
  return create(series, "series", [&] {
    const auto c = config_of<acc_checkpoint_series_config>(
        config, ACC_CHECKPOINT_SERIES_CONFIG_INITIALIZER, "config");
    acc::CheckpointSeries::Options options;
    if (c.total_limit != 0) {
      options.total_limit = c.total_limit;
    }
    return acc::CheckpointSeries(required(runtime, "runtime").value, string_of(folder, "folder"),
                                 options);
  });
}

void acc_checkpoint_series_free(acc_checkpoint_series* series) noexcept {
  release(series);
}

acc_status acc_checkpoint_series_newest(const acc_checkpoint_series* series, char* path,
                                        size_t capacity) noexcept {
  return guarded([&] {
    const auto newest = required(series, "series").value.newest();
    if (!newest) {
      throw Error(Errc::not_found, "the series has no complete checkpoint");
    }
    give_text(&required(path, "path"), capacity, *newest);
  });
}

acc_status acc_checkpoint_series_save(acc_checkpoint_series* series, const acc_model* model,
                                      const acc_optimizer* optimizer,
                                      const acc_program_value* values, size_t count) noexcept {
  return guarded([&] {
    static_cast<void>(required(series, "series")
                          .value.save(required(model, "model").value,
                                      required(optimizer, "optimizer").value,
                                      state_of(values, count)));
  });
}

acc_status acc_checkpoint_series_is_memory_due(const acc_checkpoint_series* series,
                                               const acc_optimizer* optimizer,
                                               int32_t* due) noexcept {
  return guarded([&] {
    required(due, "due") =
        required(series, "series").value.is_memory_due(required(optimizer, "optimizer").value) ? 1
                                                                                               : 0;
  });
}

acc_status acc_checkpoint_series_keep_in_memory(acc_checkpoint_series* series,
                                                const acc_model* model,
                                                const acc_optimizer* optimizer,
                                                const acc_program_value* values, size_t count,
                                                int32_t* kept) noexcept {
  return guarded([&] {
    const bool done =
        required(series, "series")
            .value.keep_in_memory(required(model, "model").value,
                                  required(optimizer, "optimizer").value, state_of(values, count));
    if (kept != nullptr) {
      *kept = done ? 1 : 0;
    }
  });
}

namespace {

using Resumed = std::optional<acc::CheckpointSeries::Resumed>;
using Resume = Resumed (acc::CheckpointSeries::*)(acc::Model&, acc::Optimizer&) const;

acc_status resume_by(Resume resume, acc_checkpoint_series* series, acc_model* model,
                     acc_optimizer* optimizer, acc_program_state** state, char* from,
                     std::size_t capacity) noexcept {
  return guarded([&] {
    Resumed resumed = (required(series, "series").value.*resume)(
        required(model, "model").value, required(optimizer, "optimizer").value);
    if (!resumed) {
      throw Error(Errc::not_found, "the series has no complete checkpoint, also not in memory");
    }
    if (from != nullptr) {
      give_text(from, capacity, resumed->from);
    }
    give_state(state, std::move(resumed->state));
  });
}

}  // namespace

acc_status acc_checkpoint_series_resume(acc_checkpoint_series* series, acc_model* model,
                                        acc_optimizer* optimizer, acc_program_state** state,
                                        char* from, size_t capacity) noexcept {
  return resume_by(&acc::CheckpointSeries::resume, series, model, optimizer, state, from, capacity);
}

acc_status acc_checkpoint_series_rejoin(acc_checkpoint_series* series, acc_model* model,
                                        acc_optimizer* optimizer, acc_program_state** state,
                                        char* from, size_t capacity) noexcept {
  return resume_by(&acc::CheckpointSeries::rejoin, series, model, optimizer, state, from, capacity);
}

acc_status acc_checkpoint_series_can_rejoin(const acc_checkpoint_series* series, acc_status status,
                                            std::int32_t* can) noexcept {
  return guarded([&] {
    std::int32_t& result = required(can, "can");
    const acc::CheckpointSeries& known = required(series, "series").value;
    constexpr std::array kOfLosses = {Errc::peer_lost, Errc::collective, Errc::timeout,
                                      Errc::connection};
    const bool rejoins = std::ranges::any_of(kOfLosses, [&](Errc code) {
      return status_of(code) == status && known.can_rejoin(Error(code, ""));
    });
    result = rejoins ? 1 : 0;
  });
}
