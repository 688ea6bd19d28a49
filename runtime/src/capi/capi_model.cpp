// SPDX-License-Identifier: Apache-2.0
// Models, units, parameters and buffers in C. Strings and shapes are copied; of an initialiser the
// function pointer and its context are kept, and called during the first use of the model.
#include "capi/capi.hpp"

#include <algorithm>

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;

acc::Initializer::Fill fill_of(const acc_parameter_config& config) {
  const auto fill = &required(config.fill, "config.fill");
  return [fill, context = config.context](std::uint64_t stream, std::int64_t offset,
                                          std::span<float> out) {
    call_program(context, [&] { fill(stream, offset, out.data(), out.size(), context); });
  };
}

acc::Initializer initializer_of(const acc_parameter_config& config) {
  switch (config.initializer) {
    case ACC_INITIALIZER_CONSTANT: return acc::constant(config.a);
    case ACC_INITIALIZER_NORMAL: return acc::normal(config.a);
    case ACC_INITIALIZER_UNIFORM: return acc::uniform(config.a, config.b);
    case ACC_INITIALIZER_CUSTOM: return fill_of(config);
    case ACC_INITIALIZER_PURE: return acc::Initializer::pure(fill_of(config));
    case ACC_INITIALIZER_PURE_ONCE: return acc::Initializer::pure_once(fill_of(config));
  }
  throw Error(Errc::invalid_argument,
              "config.initializer: unknown kind " + std::to_string(config.initializer));
}

// num_dims 0 is a scalar, for which `shape` may be NULL.
acc::Shape shape_of(const std::int64_t* shape, std::size_t num_dims) {
  acc::Shape sizes;
  if (num_dims > 0) {
    sizes.assign(&required(shape, "shape"), shape + num_dims);
  }
  return sizes;
}

std::optional<acc::ParameterDTypes> dtypes_of(const acc_parameter_config& config) {
  if (config.own_dtypes == 0) {
    return std::nullopt;
  }
  const auto any = [](std::int32_t dtype, const char* field) {
    return dtype_of(dtype, field, ACC_FLOAT8_E8M0FNU);
  };
  return acc::ParameterDTypes{.stored = any(config.stored_dtype, "config.stored_dtype"),
                              .computed = any(config.computed_dtype, "config.computed_dtype"),
                              .reduced = any(config.reduced_dtype, "config.reduced_dtype")};
}

acc::ModuleInfo module_of(const acc_module& module) {
  acc::ModuleInfo info{.name = string_of(module.name, "module.name"),
                       .class_name = string_of(module.class_name, "module.class_name"),
                       .is_candidate = module.is_candidate != 0};
  for (std::size_t i = 0; i < module.num_parameters; ++i) {
    const char* const name = (&required(module.parameters, "module.parameters"))[i];
    const std::int64_t numel = (&required(module.numels, "module.numels"))[i];
    info.parameters[string_of(name, "module.parameters[i]")] = numel;
  }
  return info;
}

}  // namespace

acc_status acc_runtime_wrap(const acc_runtime* runtime, const acc_module* modules, size_t count,
                            int32_t* chosen) noexcept {
  return guarded([&] {
    std::vector<acc::ModuleInfo> all;
    for_each_of(modules, count, "modules",
                [&](const acc_module& each) { all.push_back(module_of(each)); });
    const std::vector<bool> found = required(runtime, "runtime").value.wrap(all);
    std::ranges::copy(found, &required(chosen, "chosen"));
  });
}

acc_status acc_unit_keeps_addresses(const acc_unit* unit, int* keeps) noexcept {
  return guarded([&] {
    int& result = required(keeps, "keeps");
    result = unit_of(const_cast<acc_unit*>(unit)).keeps_addresses() ? 1 : 0;
  });
}

acc_status acc_model_create(acc_runtime* runtime, uint64_t seed, acc_model** model) noexcept {
  acc_model_config config = ACC_MODEL_CONFIG_INITIALIZER;
  config.seed = seed;
  return acc_model_create_with(runtime, &config, model);
}

acc_status acc_model_create_with(acc_runtime* runtime, const acc_model_config* config,
                                 acc_model** model) noexcept {
  return create(model, "model", [&] {
    const auto c = config_of<acc_model_config>(config, ACC_MODEL_CONFIG_INITIALIZER, "config");
    const acc::ModelOptions options{.dtype = dtype_of(c.dtype, "config.dtype"),
                                    .bfloat16_on_cpu = c.bfloat16_on_cpu != 0,
                                    .float16_on_cpu = c.float16_on_cpu != 0,
                                    .unused_units = c.unused_units != 0,
                                    .units_as_declared = c.units_as_declared != 0,
                                    .float32_buffers = c.float32_buffers != 0,
                                    .autograd = c.autograd != 0,
                                    .by_rows = c.by_rows != 0};
    return required(runtime, "runtime").value.model(c.seed, options);
  });
}

void acc_model_free(acc_model* model) noexcept {
  release(model);
}

acc_status acc_model_root(acc_model* model, const char* name, const char* class_name,
                          acc_unit** unit) noexcept {
  return guarded([&] {
    acc_unit*& result = required(unit, "unit");
    result =
        handle_of(required(model, "model")
                      .value.root(string_of(name, "name"), string_of(class_name, "class_name")));
  });
}

acc_status acc_model_unit(acc_model* model, const char* name, const char* class_name,
                          acc_unit** unit) noexcept {
  return guarded([&] {
    acc_unit*& result = required(unit, "unit");
    result =
        handle_of(required(model, "model")
                      .value.unit(string_of(name, "name"), string_of(class_name, "class_name")));
  });
}

acc_status acc_unit_parameter(acc_unit* unit, const char* name, const int64_t* shape,
                              size_t num_dims, const acc_parameter_config* config,
                              acc_parameter* parameter) noexcept {
  return guarded([&] {
    acc_parameter& result = required(parameter, "parameter");
    const acc_parameter_config values =
        config_of<acc_parameter_config>(config, ACC_PARAMETER_CONFIG_INITIALIZER, "config");
    result = std::bit_cast<acc_parameter>(unit_of(unit).parameter(
        string_of(name, "name"), shape_of(shape, num_dims), initializer_of(values),
        {.trainable = values.trainable != 0,
         .weight_decay = values.weight_decay != 0,
         .dtypes = dtypes_of(values)}));
  });
}

acc_status acc_unit_tie(acc_unit* unit, const char* alias_full_name,
                        acc_parameter parameter) noexcept {
  return guarded([&] {
    unit_of(unit).tie(string_of(alias_full_name, "alias_full_name"), parameter_of(parameter));
  });
}

acc_status acc_unit_buffer(acc_unit* unit, const char* name, const int64_t* shape, size_t num_dims,
                           const acc_parameter_config* config, acc_buffer* buffer) noexcept {
  return guarded([&] {
    acc_buffer& result = required(buffer, "buffer");
    const acc_parameter_config values =
        config_of<acc_parameter_config>(config, ACC_PARAMETER_CONFIG_INITIALIZER, "config");
    acc::Unit& owner = unit_of(unit);
    const auto declare = [&](auto... dtype) {
      return owner.buffer(string_of(name, "name"), shape_of(shape, num_dims),
                          initializer_of(values), dtype...);
    };
    result = std::bit_cast<acc_buffer>(
        values.buffer_dtype < 0
            ? declare()
            : declare(dtype_of(values.buffer_dtype, "config.buffer_dtype", ACC_FLOAT8_E8M0FNU)));
  });
}

acc_status acc_unit_tie_buffer(acc_unit* unit, const char* alias_full_name,
                               acc_buffer buffer) noexcept {
  return guarded([&] {
    unit_of(unit).tie(string_of(alias_full_name, "alias_full_name"),
                      std::bit_cast<acc::Buffer>(buffer));
  });
}

acc_status acc_model_share(acc_model* model, const char* name, void* data, size_t nbytes) noexcept {
  return guarded([&] {
    acc::Model& shared = required(model, "model").value;
    shared.share(string_of(name, "name"),
                 nbytes == 0 ? nullptr : &required(static_cast<char*>(data), "data"), nbytes);
  });
}

acc_status acc_unit_buffer_data(acc_unit* unit, acc_buffer buffer, void** data) noexcept {
  return guarded([&] {
    void*& result = required(data, "data");
    result = unit_of(unit).data(std::bit_cast<acc::Buffer>(buffer));
  });
}

acc_status acc_model_compute_dtype(const acc_model* model, acc_dtype* dtype) noexcept {
  return guarded([&] {
    required(dtype, "dtype") =
        static_cast<acc_dtype>(required(model, "model").value.compute_dtype());
  });
}

acc_status acc_model_buffer_dtype(const acc_model* model, acc_dtype* dtype) noexcept {
  return guarded([&] {
    required(dtype, "dtype") =
        static_cast<acc_dtype>(required(model, "model").value.buffer_dtype());
  });
}

int64_t acc_model_numel(const acc_model* model) noexcept {
  return model == nullptr ? -1 : model->value.numel();
}

acc_status acc_model_memory(const acc_model* model, acc_memory_report* report) noexcept {
  return guarded([&] {
    const acc::MemoryReport found = required(model, "model").value.memory();
    give(report,
         {sizeof(acc_memory_report), found.parameter_bytes, found.gradient_bytes,
          found.optimizer_bytes, found.gathered_bytes, found.gradient_buffer_bytes,
          found.device_bytes, found.device_peak_bytes, found.pinned_bytes, found.buffer_bytes,
          found.snapshot_bytes, found.nvme_bytes, found.nvme_buffer_bytes},
         "report");
  });
}

acc_status acc_model_traffic(const acc_model* model, acc_traffic_report* report) noexcept {
  return guarded([&] {
    const acc::TrafficReport found = required(model, "model").value.traffic();
    give(report,
         {sizeof(acc_traffic_report), found.gathered_elements, found.gathered_elements_moved,
          found.gather_calls, found.reduced_elements, found.reduce_calls,
          found.all_reduced_elements, found.all_reduce_calls, found.secondary_elements,
          found.gathered_bytes_sent, found.reduced_bytes_sent},
         "report");
  });
}

acc_status acc_model_reset_traffic(acc_model* model) noexcept {
  return guarded([&] { required(model, "model").value.reset_traffic(); });
}
