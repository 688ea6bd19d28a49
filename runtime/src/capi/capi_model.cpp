#include "capi/capi.hpp"

#include <algorithm>

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;

acc::Initializer initializer_of(const acc_parameter_config& config) {
  switch (config.initializer) {
    case ACC_INITIALIZER_CONSTANT: return acc::constant(config.a);
    case ACC_INITIALIZER_NORMAL: return acc::normal(config.a);
    case ACC_INITIALIZER_UNIFORM: return acc::uniform(config.a, config.b);
    case ACC_INITIALIZER_CUSTOM: {
      const auto fill = &required(config.fill, "config.fill");
      return [fill, context = config.context](std::uint64_t stream, std::int64_t offset,
                                              std::span<float> out) {
        fill(stream, offset, out.data(), out.size(), context);
      };
    }
  }
  throw Error(Errc::invalid_argument,
              "config.initializer: unknown kind " + std::to_string(config.initializer));
}

}  // namespace
acc_status acc_model_create(acc_runtime* runtime, uint64_t seed, acc_model** model) noexcept {
  return guarded([&] {
    acc_model*& result = required(model, "model");
    result = new acc_model{required(runtime, "runtime").value.model(seed)};
  });
}

void acc_model_free(acc_model* model) noexcept {
  delete model;
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
    acc::Shape sizes;
    if (num_dims > 0) {
      sizes.assign(&required(shape, "shape"), shape + num_dims);
    }
    result = std::bit_cast<acc_parameter>(unit_of(unit).parameter(
        string_of(name, "name"), std::move(sizes), initializer_of(values),
        {.trainable = values.trainable != 0, .weight_decay = values.weight_decay != 0}));
  });
}

acc_status acc_unit_tie(acc_unit* unit, const char* alias_full_name,
                        acc_parameter parameter) noexcept {
  return guarded([&] {
    unit_of(unit).tie(string_of(alias_full_name, "alias_full_name"), parameter_of(parameter));
  });
}

acc_status acc_model_load_safetensors(acc_model* model, const char* path) noexcept {
  return guarded([&] { required(model, "model").value.load_safetensors(string_of(path, "path")); });
}

acc_status acc_model_export_safetensors(acc_model* model, const char* path) noexcept {
  return guarded(
      [&] { required(model, "model").value.export_safetensors(string_of(path, "path")); });
}

static_assert(static_cast<int>(acc::DType::float32) == ACC_FLOAT32);
static_assert(static_cast<int>(acc::DType::bfloat16) == ACC_BFLOAT16);
static_assert(static_cast<int>(acc::DType::float16) == ACC_FLOAT16);

acc_status acc_model_compute_dtype(const acc_model* model, acc_dtype* dtype) noexcept {
  return guarded([&] {
    required(dtype, "dtype") =
        static_cast<acc_dtype>(required(model, "model").value.compute_dtype());
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
          found.device_bytes, found.device_peak_bytes, found.pinned_bytes},
         "report");
  });
}

acc_status acc_model_traffic(const acc_model* model, acc_traffic_report* report) noexcept {
  return guarded([&] {
    const acc::TrafficReport found = required(model, "model").value.traffic();
    give(report,
         {sizeof(acc_traffic_report), found.gathered_elements, found.gathered_elements_moved,
          found.gather_calls, found.reduced_elements, found.reduce_calls,
          found.all_reduced_elements, found.all_reduce_calls},
         "report");
  });
}

acc_status acc_model_reset_traffic(acc_model* model) noexcept {
  return guarded([&] { required(model, "model").value.reset_traffic(); });
}

acc_status acc_forward_begin(acc_unit* unit, acc_forward_use** use) noexcept {
  return guarded([&] {
    acc_forward_use*& result = required(use, "use");
    result = new acc_forward_use{unit_of(unit).forward()};
  });
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
  return guarded([&] {
    const std::unique_ptr<acc_forward_use> owned(&required(use, "use"));
    owned->value.end();
  });
}

acc_status acc_backward_begin(acc_unit* unit, acc_backward_use** use) noexcept {
  return guarded([&] {
    acc_backward_use*& result = required(use, "use");
    result = new acc_backward_use{unit_of(unit).backward()};
  });
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
  return guarded([&] {
    const std::unique_ptr<acc_backward_use> owned(&required(use, "use"));
    owned->value.end();
  });
}

acc_status acc_no_grad_begin(acc_model* model, acc_no_grad** scope) noexcept {
  return guarded([&] {
    acc_no_grad*& result = required(scope, "scope");
    result = new acc_no_grad{required(model, "model").value.no_grad()};
  });
}

void acc_no_grad_end(acc_no_grad* scope) noexcept {
  delete scope;
}

acc_status acc_optimizer_adamw(acc_model* model, const acc_adamw_config* config,
                               acc_optimizer** optimizer) noexcept {
  return guarded([&] {
    acc_optimizer*& result = required(optimizer, "optimizer");
    const auto c = config_of<acc_adamw_config>(config, ACC_ADAMW_CONFIG_INITIALIZER, "config");
    result = new acc_optimizer{required(model, "model")
                                   .value.optimizer(acc::AdamW{.lr = c.lr,
                                                               .beta1 = c.beta1,
                                                               .beta2 = c.beta2,
                                                               .eps = c.eps,
                                                               .weight_decay = c.weight_decay})};
  });
}

acc_status acc_optimizer_sgd(acc_model* model, const acc_sgd_config* config,
                             acc_optimizer** optimizer) noexcept {
  return guarded([&] {
    acc_optimizer*& result = required(optimizer, "optimizer");
    const auto c = config_of<acc_sgd_config>(config, ACC_SGD_CONFIG_INITIALIZER, "config");
    result = new acc_optimizer{required(model, "model")
                                   .value.optimizer(acc::Sgd{.lr = c.lr,
                                                             .momentum = c.momentum,
                                                             .weight_decay = c.weight_decay,
                                                             .nesterov = c.nesterov != 0})};
  });
}

void acc_optimizer_free(acc_optimizer* optimizer) noexcept {
  delete optimizer;
}

acc_status acc_optimizer_step(acc_optimizer* optimizer, acc_step_info* info) noexcept {
  return guarded([&] {
    if (info != nullptr) {
      check_struct_size(info->size, sizeof(acc_step_info), "info");
    }
    const acc::StepInfo found = required(optimizer, "optimizer").value.step();
    if (info != nullptr) {
      give(info, {sizeof(acc_step_info), found.step, found.grad_norm, found.clip_coefficient},
           "info");
    }
  });
}

acc_status acc_optimizer_set_lr(acc_optimizer* optimizer, double lr) noexcept {
  return guarded([&] { required(optimizer, "optimizer").value.set_lr(lr); });
}

acc_status acc_optimizer_lr(const acc_optimizer* optimizer, double* lr) noexcept {
  return guarded([&] { required(lr, "lr") = required(optimizer, "optimizer").value.lr(); });
}

acc_status acc_optimizer_set_clip_norm(acc_optimizer* optimizer, double max_norm) noexcept {
  return guarded([&] { required(optimizer, "optimizer").value.set_clip_norm(max_norm); });
}

acc_status acc_optimizer_clip_norm(const acc_optimizer* optimizer, double* max_norm) noexcept {
  return guarded(
      [&] { required(max_norm, "max_norm") = required(optimizer, "optimizer").value.clip_norm(); });
}
