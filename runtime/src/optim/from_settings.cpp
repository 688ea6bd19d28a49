// SPDX-License-Identifier: Apache-2.0
#include "optim/from_settings.hpp"

#include "acc/base/error.hpp"
#include "acc/plugins/settings.hpp"

#include <string>

namespace acc::optim {
namespace {

using plugins::OptimizerChoice;
using plugins::ScheduleChoice;

AdamW adamw_of(const OptimizerChoice& choice) {
  AdamW settings;
  settings.lr = choice.lr.value_or(settings.lr);
  settings.eps = choice.eps.value_or(settings.eps);
  settings.weight_decay = choice.weight_decay.value_or(settings.weight_decay);
  if (!choice.betas.empty()) {
    if (choice.betas.size() != 2) {
      throw Error(Errc::config, "optimizer.params.betas: expected two numbers, found " +
                                    std::to_string(choice.betas.size()));
    }
    settings.beta1 = choice.betas[0];
    settings.beta2 = choice.betas[1];
  }
  return settings;
}

Sgd sgd_of(const OptimizerChoice& choice) {
  Sgd settings;
  settings.lr = choice.lr.value_or(settings.lr);
  settings.momentum = choice.momentum.value_or(settings.momentum);
  settings.weight_decay = choice.weight_decay.value_or(settings.weight_decay);
  return settings;
}

WarmupType warmup_type_of(const std::string& text) {
  if (text == "log" || text == "linear") {
    return text == "log" ? WarmupType::log : WarmupType::linear;
  }
  throw Error(Errc::config,
              "scheduler.params.warmup_type: expected log or linear, found '" + text + "'");
}

std::int64_t total_steps_of(const ScheduleChoice& choice) {
  if (!choice.total_num_steps) {
    throw Error(Errc::config, "scheduler.type " + choice.type +
                                  " needs scheduler.params.total_num_steps, which is not given");
  }
  return *choice.total_num_steps;
}

WarmupLr warmup_of(const ScheduleChoice& choice) {
  WarmupLr settings{.max_lr = choice.warmup_max_lr, .type = warmup_type_of(choice.warmup_type)};
  settings.min_lr = choice.warmup_min_lr.value_or(settings.min_lr);
  settings.warmup_steps = choice.warmup_num_steps.value_or(settings.warmup_steps);
  return settings;
}

WarmupCosineLr cosine_of(const ScheduleChoice& choice) {
  WarmupCosineLr settings{.total_steps = total_steps_of(choice),
                          .type = warmup_type_of(choice.warmup_type)};
  settings.warmup_min_ratio = choice.warmup_min_ratio.value_or(settings.warmup_min_ratio);
  settings.warmup_steps = choice.warmup_num_steps.value_or(settings.warmup_steps);
  settings.cos_min_ratio = choice.cos_min_ratio.value_or(settings.cos_min_ratio);
  return settings;
}

}  // namespace

OptimizerSettings optimizer_of(const OptimizerChoice& choice) {
  const std::string type = lower(choice.type);
  if (type.empty()) {
    throw Error(Errc::config,
                "the configuration chooses no optimizer (optimizer.type of a DeepSpeed file)");
  }
  if (type == "adamw") {
    return adamw_of(choice);
  }
  if (type == "adam") {
    // The settings say "adam" only for the rule that adds the decay to the gradient (L2
    // regularization); with adam_w_mode true they say "adamw". Without decay both rules are the
    // same.
    AdamW settings = adamw_of(choice);
    settings.weight_decay = choice.weight_decay.value_or(0.0);
    if (settings.weight_decay != 0.0) {
      throw Error(Errc::config,
                  "optimizer.type adam that adds its weight_decay to the gradient (adam_w_mode "
                  "false) is not in this version of libacc_runtime: use AdamW, or Adam without "
                  "weight decay");
    }
    return settings;
  }
  if (type == "sgd") {
    return sgd_of(choice);
  }
  throw Error(Errc::config,
              "optimizer.type " + choice.type +
                  " is not in this version of libacc_runtime (use AdamW, Adam or SGD)");
}

LrSchedule schedule_of(const ScheduleChoice& choice) {
  const std::string& type = choice.type;
  if (type.empty()) {
    return {};
  }
  if (type == "WarmupLR") {
    return warmup_lr(warmup_of(choice));
  }
  if (type == "WarmupDecayLR") {
    return warmup_decay_lr(warmup_of(choice), total_steps_of(choice));
  }
  if (type == "WarmupCosineLR") {
    return warmup_cosine_lr(cosine_of(choice));
  }
  throw Error(Errc::config,
              "scheduler.type " + type +
                  " is not in this version of libacc_runtime (use WarmupLR, WarmupDecayLR or "
                  "WarmupCosineLR)");
}

}  // namespace acc::optim
