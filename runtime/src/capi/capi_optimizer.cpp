// SPDX-License-Identifier: Apache-2.0
// Optimizers, parameter groups and schedules in C. A config struct is read with `config_of`, which
// fills fields that the caller's header does not have with the defaults.
#include "capi/capi.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace acc::capi;
using acc::Errc;
using acc::Error;

// Negative numbers stand for "not set" in the C structs.
std::optional<double> unless_negative(double value) {
  return value < 0.0 ? std::nullopt : std::optional(value);
}

acc::ParameterGroup group_of(const acc_parameter_group& given) {
  const auto c =
      config_of<acc_parameter_group>(&given, ACC_PARAMETER_GROUP_INITIALIZER, "groups[]");
  acc::ParameterGroup group{.name = string_of(c.name, "groups[].name"),
                            .parameters = {},
                            .lr = unless_negative(c.lr),
                            .weight_decay = unless_negative(c.weight_decay),
                            .matrices = c.element_wise == 0};
  for (std::size_t i = 0; i < c.num_parameters; ++i) {
    group.parameters.push_back(
        string_of((&required(c.parameters, "groups[].parameters"))[i], "groups[].parameters[]"));
  }
  return group;
}

std::vector<acc::ParameterGroup> groups_of(const acc_parameter_group* groups, std::size_t count) {
  std::vector<acc::ParameterGroup> all;
  for_each_of(groups, count, "groups",
              [&](const acc_parameter_group& each) { all.push_back(group_of(each)); });
  return all;
}

// The defaults of warmup_steps differ: DeepSpeed's schedules take theirs from acc::WarmupLr.
acc::WarmupLr warmup_of(const acc_lr_schedule_config& config) {
  acc::WarmupLr warmup{.min_lr = config.min_lr, .max_lr = unless_negative(config.max_lr)};
  warmup.warmup_steps = config.warmup_steps < 0 ? warmup.warmup_steps : config.warmup_steps;
  warmup.type = config.linear_warmup != 0 ? acc::WarmupType::linear : acc::WarmupType::log;
  return warmup;
}

acc::LrSchedule schedule_of(const acc_lr_schedule_config& config) {
  const std::int64_t steps = std::max<std::int64_t>(config.warmup_steps, 0);
  const acc::WarmupLr warmup = warmup_of(config);
  switch (config.kind) {
    case ACC_LR_CONSTANT: return acc::constant_with_warmup(steps);
    case ACC_LR_LINEAR: return acc::linear_with_warmup(steps, config.total_steps);
    case ACC_LR_COSINE: return acc::cosine_with_warmup(steps, config.total_steps, config.cycles);
    case ACC_LR_WARMUP: return acc::warmup_lr(warmup);
    case ACC_LR_WARMUP_DECAY: return acc::warmup_decay_lr(warmup, config.total_steps);
    case ACC_LR_WARMUP_COSINE:
      return acc::warmup_cosine_lr({.total_steps = config.total_steps,
                                    .warmup_min_ratio = config.warmup_min_ratio,
                                    .warmup_steps = warmup.warmup_steps,
                                    .cos_min_ratio = config.cos_min_ratio,
                                    .type = warmup.type});
    case ACC_LR_CUSTOM: {
      const auto function = &required(config.function, "config.function");
      return [function, context = config.context](std::int64_t step, double base) {
        double rate = 0.0;
        const CallbackResult result =
            call_program(context, [&] { rate = function(step, base, context); });
        return context == acc_callback_context() ? result.value : rate;
      };
    }
  }
  throw Error(Errc::invalid_argument,
              "config.kind: unknown schedule " + std::to_string(config.kind));
}

/// Calls a function of the program with the shards. Throws Error(process) if it fails.
void pass(acc_shards_function function, void* context,
          std::span<const acc::ParameterShard> shards) {
  std::vector<acc_parameter_shard> passed;
  for (const acc::ParameterShard& each : shards) {
    passed.push_back({.size = sizeof(acc_parameter_shard),
                      .name = each.name.c_str(),
                      .offset = each.offset,
                      .numel = each.numel,
                      .weight_decay = each.weight_decay,
                      .dtype = static_cast<std::int32_t>(each.dtype),
                      .in_host_memory = each.in_host_memory,
                      .weights = each.weights,
                      .gradient = each.gradient,
                      .gives_gradient = each.gradient_memory ? 1 : 0,
                      .states = each.states.data(),
                      .num_states = each.states.size()});
  }
  int status = 0;
  call_program(context, [&] { status = function(passed.data(), passed.size(), context); });
  if (status != 0 && context != acc_callback_context()) {
    throw Error(Errc::process, "the program's function for shards failed");
  }
}

/// The same with a matrix.
void pass(acc_matrix_function function, void* context, const acc::OwnedMatrix& of) {
  const acc_owned_matrix matrix{.size = sizeof(acc_owned_matrix),
                                .name = of.name.c_str(),
                                .rows = of.rows,
                                .columns = of.columns,
                                .step = of.step,
                                .lr = of.lr,
                                .weight_decay = of.weight_decay,
                                .values = of.values,
                                .states = of.states.data(),
                                .num_states = of.states.size()};
  int status = 0;
  call_program(context, [&] { status = function(&matrix, context); });
  if (status != 0 && context != acc_callback_context()) {
    throw Error(Errc::process, "the program's function for the matrix " + of.name + " failed");
  }
}

/// texts: [count].
std::vector<std::string> strings_of(const char* const* texts, std::size_t count, const char* name) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(string_of((&required(texts, name))[i], name));
  }
  return all;
}

/// names, values: [count].
std::map<std::string, double> values_of(const char* const* names, const double* values,
                                        std::size_t count) {
  std::map<std::string, double> found;
  for (std::size_t i = 0; i < count; ++i) {
    found.insert_or_assign(string_of((&required(names, "names"))[i], "names[]"),
                           (&required(values, "values"))[i]);
  }
  return found;
}

}  // namespace

acc_status acc_optimizer_adamw(acc_model* model, const acc_adamw_config* config,
                               acc_optimizer** optimizer) noexcept {
  return acc_optimizer_adamw_groups(model, config, nullptr, 0, optimizer);
}

acc_status acc_optimizer_adamw_groups(acc_model* model, const acc_adamw_config* config,
                                      const acc_parameter_group* groups, size_t num_groups,
                                      acc_optimizer** optimizer) noexcept {
  return create(optimizer, "optimizer", [&] {
    const auto c = config_of<acc_adamw_config>(config, ACC_ADAMW_CONFIG_INITIALIZER, "config");
    const acc::AdamW settings{.lr = c.lr,
                              .beta1 = c.beta1,
                              .beta2 = c.beta2,
                              .eps = c.eps,
                              .weight_decay = c.weight_decay};
    return required(model, "model").value.optimizer(settings, groups_of(groups, num_groups));
  });
}

acc_status acc_optimizer_sgd(acc_model* model, const acc_sgd_config* config,
                             acc_optimizer** optimizer) noexcept {
  return acc_optimizer_sgd_groups(model, config, nullptr, 0, optimizer);
}

acc_status acc_optimizer_sgd_groups(acc_model* model, const acc_sgd_config* config,
                                    const acc_parameter_group* groups, size_t num_groups,
                                    acc_optimizer** optimizer) noexcept {
  return create(optimizer, "optimizer", [&] {
    const auto c = config_of<acc_sgd_config>(config, ACC_SGD_CONFIG_INITIALIZER, "config");
    const acc::Sgd settings{.lr = c.lr,
                            .momentum = c.momentum,
                            .weight_decay = c.weight_decay,
                            .nesterov = c.nesterov != 0};
    return required(model, "model").value.optimizer(settings, groups_of(groups, num_groups));
  });
}

acc_status acc_optimizer_named(acc_model* model, const char* name, const char* const* names,
                               const double* values, size_t num_coefficients,
                               const acc_parameter_group* groups, size_t num_groups,
                               acc_optimizer** optimizer) noexcept {
  return create(optimizer, "optimizer", [&] {
    const acc::NamedRule settings{.name = string_of(name, "name"),
                                  .coefficients = values_of(names, values, num_coefficients)};
    return required(model, "model").value.optimizer(settings, groups_of(groups, num_groups));
  });
}

acc_status acc_optimizer_program(acc_model* model, acc_shards_function update, void* context,
                                 acc_optimizer** optimizer) noexcept {
  return acc_optimizer_program_states(model, update, context, nullptr, 0, optimizer);
}

acc_status acc_optimizer_program_states(acc_model* model, acc_shards_function update, void* context,
                                        const char* const* states, size_t num_states,
                                        acc_optimizer** optimizer) noexcept {
  return create(optimizer, "optimizer", [&] {
    const acc_shards_function function = &required(update, "update");
    const auto settings = std::make_shared<std::string>();
    const acc::ProgramRule rule{[function, context](std::span<const acc::ParameterShard> shards) {
                                  pass(function, context, shards);
                                },
                                [settings] { return *settings; },
                                strings_of(states, num_states, "states")};
    return acc_optimizer{required(model, "model").value.optimizer(rule), settings};
  });
}

acc_status acc_optimizer_matrices(acc_model* model, acc_matrix_function update, void* context,
                                  const char* const* states, const int* shapes, size_t num_states,
                                  const char* others, const char* const* names,
                                  const double* values, size_t num_coefficients,
                                  const acc_parameter_group* groups, size_t num_groups,
                                  acc_optimizer** optimizer) noexcept {
  return create(optimizer, "optimizer", [&] {
    acc::MatrixRule rule{
        .update = [function = &required(update, "update"),
                   context](const acc::OwnedMatrix& of) { pass(function, context, of); },
        .others = {string_of(others, "others"), values_of(names, values, num_coefficients)}};
    const std::vector<std::string> keys = strings_of(states, num_states, "states");
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const int shape = (&required(shapes, "shapes"))[i];
      if (shape < ACC_MATRIX_STATE_WHOLE || shape > ACC_MATRIX_STATE_COLUMNS_BY_COLUMNS) {
        throw Error(Errc::invalid_argument, "shapes[" + std::to_string(i) +
                                                "]: expected one of ACC_MATRIX_STATE_..., found " +
                                                std::to_string(shape));
      }
      rule.states.emplace_back(keys[i], static_cast<acc::MatrixState>(shape));
    }
    return required(model, "model").value.optimizer(rule, groups_of(groups, num_groups));
  });
}

acc_status acc_optimizer_set_rule_settings(acc_optimizer* optimizer,
                                           const char* settings) noexcept {
  return guarded([&] {
    const auto& kept = required(optimizer, "optimizer").rule_settings;
    if (!kept) {
      throw Error(Errc::invalid_argument, "the update rule of this optimizer is not the program's");
    }
    *kept = string_of(settings, "settings");
  });
}

acc_status acc_optimizer_shards(const acc_optimizer* optimizer, acc_shards_function visit,
                                void* context) noexcept {
  return guarded([&] {
    pass(&required(visit, "visit"), context, required(optimizer, "optimizer").value.shards());
  });
}

acc_status acc_model_shards(acc_model* model, acc_shards_function visit, void* context) noexcept {
  return guarded(
      [&] { pass(&required(visit, "visit"), context, required(model, "model").value.shards()); });
}

acc_status acc_model_take_gradients(acc_model* model, acc_shards_function visit, void* context,
                                    acc_gradients** kept) noexcept {
  return guarded([&] {
    const auto function = &required(visit, "visit");
    auto memory = std::make_unique<acc_gradients>();
    required(model, "model").value.take_gradients([&](std::span<const acc::ParameterShard> shards) {
      for (const acc::ParameterShard& each : shards) {
        memory->memory.push_back(each.gradient_memory);
      }
      pass(function, context, shards);
    });
    if (kept != nullptr) {
      *kept = memory.release();
    }
  });
}

void acc_gradients_free(acc_gradients* gradients) noexcept {
  release(gradients);
}

acc_status acc_model_publish(acc_model* model) noexcept {
  return guarded([&] { required(model, "model").value.publish(); });
}

acc_status acc_optimizer_from_settings(acc_model* model, acc_optimizer** optimizer) noexcept {
  return create(optimizer, "optimizer",
                [&] { return required(model, "model").value.optimizer_from_settings(); });
}

void acc_optimizer_free(acc_optimizer* optimizer) noexcept {
  release(optimizer);
}

acc_status acc_optimizer_step(acc_optimizer* optimizer, acc_step_info* info) noexcept {
  return guarded([&] {
    if (info != nullptr) {  // before the step, which cannot be undone
      check_struct_size(info->size, sizeof(acc_step_info), "info");
    }
    const acc::IssuedStep step = required(optimizer, "optimizer").value.issue_step();
    if (info != nullptr) {
      const acc::StepInfo found = step.result();
      give(info,
           {sizeof(acc_step_info), found.step, found.grad_norm, found.clip_coefficient, found.lr,
            found.loss_scale, found.skipped ? 1 : 0, found.skipped_steps, found.tiles},
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

acc_status acc_optimizer_set_group_lr(acc_optimizer* optimizer, const char* group,
                                      double lr) noexcept {
  return guarded(
      [&] { required(optimizer, "optimizer").value.set_lr(string_of(group, "group"), lr); });
}

acc_status acc_optimizer_group_lr(const acc_optimizer* optimizer, const char* group,
                                  double* lr) noexcept {
  return guarded([&] {
    required(lr, "lr") = required(optimizer, "optimizer").value.lr(string_of(group, "group"));
  });
}

acc_status acc_optimizer_loss_scale(const acc_optimizer* optimizer, double* loss_scale) noexcept {
  return guarded([&] {
    required(loss_scale, "loss_scale") = required(optimizer, "optimizer").value.loss_scale();
  });
}

acc_status acc_optimizer_steps(const acc_optimizer* optimizer, int64_t* steps) noexcept {
  return guarded(
      [&] { required(steps, "steps") = required(optimizer, "optimizer").value.steps(); });
}

acc_status acc_optimizer_set_schedule(acc_optimizer* optimizer,
                                      const acc_lr_schedule_config* config) noexcept {
  return guarded([&] {
    const auto c = config_of<acc_lr_schedule_config>(&required(config, "config"),
                                                     ACC_LR_SCHEDULE_CONFIG_INITIALIZER, "config");
    required(optimizer, "optimizer").value.set_schedule(schedule_of(c));
  });
}

acc_status acc_optimizer_set_named_schedule(acc_optimizer* optimizer, const char* name,
                                            const char* const* names, const double* values,
                                            size_t num_values) noexcept {
  return guarded([&] {
    required(optimizer, "optimizer")
        .value.set_schedule(
            acc::schedule_of({string_of(name, "name"), values_of(names, values, num_values)}));
  });
}

acc_status acc_optimizer_set_clip_norm(acc_optimizer* optimizer, double max_norm) noexcept {
  return guarded([&] { required(optimizer, "optimizer").value.set_clip_norm(max_norm); });
}

acc_status acc_optimizer_clip_norm(const acc_optimizer* optimizer, double* max_norm) noexcept {
  return guarded(
      [&] { required(max_norm, "max_norm") = required(optimizer, "optimizer").value.clip_norm(); });
}

acc_status acc_optimizer_set_clip_value(acc_optimizer* optimizer, double max_value) noexcept {
  return guarded([&] { required(optimizer, "optimizer").value.set_clip_value(max_value); });
}

acc_status acc_optimizer_clip_value(const acc_optimizer* optimizer, double* max_value) noexcept {
  return guarded([&] {
    required(max_value, "max_value") = required(optimizer, "optimizer").value.clip_value();
  });
}
