// SPDX-License-Identifier: Apache-2.0
// Known causes of differences, as a table of rules (docs/compare.md).
#include "commands/compare/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

namespace acc::launcher::commands::compare {
namespace {

/// What the rules see: one side, which a rule suspects, and the other one.
struct Evidence {
  const Side& one;
  const Side& other;
  const Comparison& comparison;
  const Difference& first;
  bool is_a;  ///< `one` is side A

  [[nodiscard]] const Step& step() const { return at(one, first.step); }
  [[nodiscard]] const Step& step_of_other() const { return at(other, first.step); }
  [[nodiscard]] const MeasuredStep& measured() const {
    return comparison.measured[static_cast<std::size_t>(first.step)];
  }
  /// Factor from the other side to this one; nullopt: there is none.
  [[nodiscard]] std::optional<double> factor(const std::vector<Measured>& list) const {
    const auto found = common_factor(list);
    return found && !is_a ? std::optional(1.0 / *found) : found;
  }
  [[nodiscard]] std::optional<double> of_gradients() const {
    const auto found = is_a ? gradient_factor(step(), step_of_other(), measured())
                            : gradient_factor(step_of_other(), step(), measured());
    return found && !is_a ? std::optional(1.0 / *found) : found;
  }
  [[nodiscard]] std::optional<double> of_loss() const {
    return step().loss && step_of_other().loss ? std::optional(*step().loss / *step_of_other().loss)
                                               : std::nullopt;
  }
  [[nodiscard]] bool is(Kind kind) const { return first.kind == kind; }
  /// The name of the first difference as this side has it.
  [[nodiscard]] std::string name() const {
    return is_a ? first.name : comparison.names.in_b(first.name);
  }
  [[nodiscard]] std::string name_of_other() const {
    return is_a ? comparison.names.in_b(first.name) : first.name;
  }
  /// The argument of the first difference in a step; null: it is not of data.
  [[nodiscard]] const Data* data_of(const Step& of) const {
    if (!is(Kind::data)) {
      return nullptr;
    }
    const auto found = of.data.find(first.name.substr(std::string_view("argument ").size()));
    return found == of.data.end() ? nullptr : &found->second;
  }
  [[nodiscard]] const Data* data() const { return data_of(step()); }
  [[nodiscard]] const Data* data_of_other() const { return data_of(step_of_other()); }
  /// What side A or B had at the first difference.
  [[nodiscard]] const std::string& found() const { return is_a ? first.a : first.b; }
  /// Differences that were found after a loss or a gradient was computed.
  [[nodiscard]] bool is_of_gradients() const {
    return is(Kind::loss) || is(Kind::backward) || is(Kind::gradient) || is(Kind::clip);
  }
  static const Step& at(const Side& side, int step) {
    return side.steps[static_cast<std::size_t>(step)];
  }
};

bool near(std::optional<double> a, double b, double tolerance = 0.02) {
  return a && std::abs(*a / b - 1.0) <= tolerance;
}

using Found = std::optional<Cause>;

Cause cause(std::string id, std::string text, std::string setting) {
  return {std::move(id), std::move(text), std::move(setting)};
}

/// The setting of the first parameter of the step; nullopt: it has none of that name.
std::optional<double> setting_of(const Step& step, const std::string& parameter,
                                 const std::string& key) {
  const auto settings = step.settings.find(parameter);
  if (settings == step.settings.end() || !settings->second.contains(key)) {
    return std::nullopt;
  }
  char* end = nullptr;
  const std::string& text = settings->second.at(key);
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? std::nullopt : std::optional(value);
}

// ---- data

Found same_data(const Evidence& e) {
  const Data* data = e.data();
  if (data == nullptr || e.one.world_size == 1 || data->of_rank.size() < 2 ||
      std::ranges::any_of(data->of_rank, [&](const auto& rank) {
        return rank.second != data->of_rank.begin()->second;
      })) {
    return std::nullopt;
  }
  return cause("same_data", "all ranks of " + e.one.label + " read the same data",
               "give each rank its part: DistributedSampler, accelerator.prepare(loader), or the "
               "rank as the offset of the samples");
}

Found rank_without_data(const Evidence& e) {
  const Data* data = e.data();
  if (e.is_of_gradients() && !e.step().data.empty()) {
    data = &e.step().data.begin()->second;
  }
  if (data == nullptr || static_cast<int>(data->of_rank.size()) == e.one.world_size) {
    return std::nullopt;
  }
  return cause("rank_without_data",
               fmt::format("only {} of {} ranks of {} had data in this step", data->of_rank.size(),
                           e.one.world_size, e.one.label),
               "give all ranks the same number of batches: drop_last, or even_batches");
}

Found last_batch(const Evidence& e) {
  const Data* data = e.data();
  const Data* other = e.data_of_other();
  if (data == nullptr || other == nullptr || e.first.step == 0) {
    return std::nullopt;
  }
  const Data* before = e.data_of(Evidence::at(e.one, e.first.step - 1));
  const bool shrinks = before != nullptr && data->rows < before->rows;
  if (!shrinks && (data->rows_of.size() < 2 || data->rows_of == other->rows_of)) {
    return std::nullopt;
  }
  return cause("last_batch",
               fmt::format("the batch of {} is incomplete in this step: the last one of an epoch",
                           e.one.label),
               "drop_last=True, or the same number of samples on both sides");
}

Found batch_size(const Evidence& e) {
  const Data* data = e.data();
  const Data* other = e.data_of_other();
  if (data == nullptr || other == nullptr || data->rows <= other->rows) {
    return std::nullopt;
  }
  return cause(
      "batch_size",
      fmt::format("{} trains on {} rows per step ({} ranks x {} micro-steps), {} on {} ({} "
                  "x {})",
                  e.one.label, data->rows, e.one.world_size, e.step().micro_steps, e.other.label,
                  other->rows, e.other.world_size, e.step_of_other().micro_steps),
      "batch size per rank, gradient_accumulation_steps, number of processes: their "
      "product has to be the same");
}

Found data_order(const Evidence& e) {
  const Data* data = e.data();
  const Data* other = e.data_of_other();
  if (!e.is_a || data == nullptr || other == nullptr || data->rows != other->rows) {
    return std::nullopt;
  }
  std::uint64_t sum_one = 0;
  std::uint64_t sum_other = 0;
  bool at_other_step = false;
  for (int i = 0; i < e.comparison.steps; ++i) {
    const Data* of_one = e.data_of(Evidence::at(e.one, i));
    const Data* of_other = e.data_of(Evidence::at(e.other, i));
    sum_one += of_one == nullptr ? 0 : of_one->any_order;
    sum_other += of_other == nullptr ? 0 : of_other->any_order;
    at_other_step =
        at_other_step || (of_other != nullptr && of_other->any_order == data->any_order);
  }
  const bool same_in_all = sum_one == sum_other;
  return cause("data_order",
               same_in_all || at_other_step
                   ? "both sides read the same samples in another order"
                   : "the sides read other samples: another order, seed of shuffling or sampler",
               "seed of the sampler (DistributedSampler(seed), set_epoch, data_seed), shuffle, "
               "dispatch_batches, split_batches");
}

// ---- weights and buffers

Found weight_type(const Evidence& e) {
  if (!e.is(Kind::weight_type) || (e.found() != "bfloat16" && e.found() != "float16")) {
    return std::nullopt;
  }
  return cause("master_weights",
               fmt::format("the optimizer of {} updates weights in {}: updates smaller than half "
                           "a unit of the last digit are lost",
                           e.one.label, e.found()),
               "load the model in float32 and compute in 16 bits by mixed_precision (FSDP: "
               "MixedPrecision; DeepSpeed: bf16 with master weights; torch_dtype of "
               "from_pretrained)");
}

Found initial_weights(const Evidence& e) {
  if (e.is_a && e.is(Kind::weights)) {
    return cause("initial_weights", "the sides begin with different weights",
                 "seed before the model is made, the checkpoint that is loaded, "
                 "fsdp_sync_module_states");
  }
  const bool ranks =
      e.is(Kind::ranks_differ) && e.first.phase == "initial weights" && e.found() != "ranks agree";
  return !ranks ? Found()
                : cause("initial_weights_of_ranks",
                        "the ranks of " + e.one.label + " begin with different weights",
                        "the same seed on all ranks when the model is made, or a broadcast from "
                        "rank 0 (DDP, fsdp_sync_module_states)");
}

/// True if the side has a buffer of this name in the module itself.
bool has_buffer(const Side& side, const std::string& module, std::string_view name) {
  return std::ranges::any_of(side.buffers, [&](const std::string& each) {
    const auto dot = each.rfind('.');
    return (dot == std::string::npos ? "" : each.substr(0, dot)) == module &&
           (name.empty() || each.ends_with(name));
  });
}

Found buffers(const Evidence& e) {
  const bool of_ranks = e.is(Kind::ranks_differ) && e.first.phase == "buffers";
  const bool in_forward = e.is(Kind::forward) && has_buffer(e.one, e.first.name, "") &&
                          !has_buffer(e.one, e.first.name, "running_mean") &&
                          e.one.world_size != e.other.world_size;
  if (!e.is_a || (!e.is(Kind::buffer) && !of_ranks && !in_forward)) {
    return std::nullopt;
  }
  if (in_forward) {
    return cause(
        "buffer",
        e.first.name + " has a buffer that it changes in the forward, and computes with it",
        "an all_reduce of what the buffer is made of, or broadcast_buffers of DDP");
  }
  return cause("buffer", "the buffer " + e.first.name + " is not synchronised between ranks",
               "broadcast_buffers of DDP, SyncBatchNorm, or an all_reduce of the buffer");
}

// ---- forward

/// The module of an output or one that encloses it, if it draws random numbers.
const ModelModule* random_module(const Side& side, std::string name) {
  for (;;) {
    const ModelModule* found = side.module(name);
    if (found != nullptr && found->is_random) {
      return found;
    }
    const auto dot = name.rfind('.');
    if (dot == std::string::npos) {
      return nullptr;
    }
    name.resize(dot);
  }
}

/// The random modules up to the first difference, in the order of computing.
Found dropout(const Evidence& e) {
  if (!e.is_a || !e.is(Kind::forward)) {
    return std::nullopt;
  }
  for (const Side* side : {&e.one, &e.other}) {
    const ModelModule* module = nullptr;
    for (const Measured& each : e.measured().of(Phase::forward)) {
      const ModelModule* now =
          random_module(*side, side == &e.one ? each.name : e.comparison.names.in_b(each.name));
      module = now != nullptr ? now : module;
      if (each.name == e.first.name) {
        break;
      }
    }
    if (module != nullptr && side->random != "off") {
      return cause("dropout",
                   fmt::format("{} is random ({}{}): the sides draw other numbers, or only one of "
                               "them drops",
                               module->name, module->type,
                               module->rate > 0.0 ? fmt::format(", rate {:g}", module->rate) : ""),
                   "compare with --random off, or --random equal if both have the same ranks and "
                   "micro-steps");
    }
  }
  return std::nullopt;
}

Found batch_norm(const Evidence& e) {
  const bool same_batches = e.one.world_size == e.other.world_size &&
                            e.step().micro_steps == e.step_of_other().micro_steps;
  if (!e.is_a || !e.is(Kind::forward) || same_batches) {
    return std::nullopt;
  }
  // The outputs of a norm itself add up to the same.
  for (const Measured& each : e.measured().of(Phase::forward)) {
    if (has_buffer(e.one, each.name, "running_mean")) {
      return cause(
          "batch_norm",
          each.name + " uses the statistics of each batch: of smaller batches they differ",
          "SyncBatchNorm.convert_sync_batchnorm, or a norm that does not depend on the batch");
    }
    if (each.name == e.first.name) {
      break;
    }
  }
  return std::nullopt;
}

Found evaluation_mode(const Evidence& e) {
  if (!e.is(Kind::unchanged) && !e.is(Kind::forward) && !e.is(Kind::loss) &&
      !e.is(Kind::backward) && !e.is(Kind::gradient) && !e.is(Kind::buffer)) {
    return std::nullopt;
  }
  const bool one_is_silent = e.step().of(Phase::forward).list().empty() ||
                             (!e.step().is_training && e.step_of_other().is_training);
  if (!one_is_silent || e.step_of_other().of(Phase::forward).list().empty() ||
      e.one.engine == "native") {
    return std::nullopt;
  }
  return cause("evaluation_mode",
               e.one.label +
                   " computes in evaluation mode: dropout is off and norms use their "
                   "stored statistics",
               "model.train() after each evaluation, also of the wrapped model");
}

Found stale_weights(const Evidence& e) {
  if (!e.is_a || !e.is(Kind::forward) || e.first.phase != "publication") {
    return std::nullopt;
  }
  return cause(
      "publication",
      "the optimizers' weights agree after the last step, and the models compute with "
      "others: one model does not use what its optimizer updates",
      "make the optimizer after wrapping and loading, with the wrapped model's parameters");
}

Found reduced_precision(const Evidence& e) {
  const bool fits = e.first.distance > 1e-5 && e.first.distance < 3e-2;
  if (!e.is_a || !e.is(Kind::forward) || !fits || e.comparison.precision != "float32") {
    return std::nullopt;
  }
  return cause(
      "tf32", "the distance is that of TF32 or of 16-bit products on one side",
      "torch.backends.cuda.matmul.allow_tf32, torch.set_float32_matmul_precision, autocast");
}

// ---- loss and gradients

Found accumulation(const Evidence& e) {
  const int micro_steps = e.step().micro_steps;
  const auto factor = e.is_of_gradients() ? e.of_gradients() : std::nullopt;
  const auto of_backward =
      e.is_of_gradients() ? e.factor(e.measured().of(Phase::backward)) : std::nullopt;
  if (micro_steps < 2) {
    return std::nullopt;
  }
  if (near(factor, micro_steps) && !near(of_backward, 1.0)) {
    return cause(
        "loss_not_divided",
        fmt::format("the gradients of {} are {} times as large: the loss is not divided by "
                    "its {} micro-steps",
                    e.one.label, micro_steps, micro_steps),
        "loss / gradient_accumulation_steps, or accelerator.accumulate and "
        "accelerator.backward");
  }
  if (near(factor, 1.0 / micro_steps)) {
    return cause("loss_divided_twice",
                 fmt::format("the gradients of {} are 1/{} as large: the loss is divided twice by "
                             "its {} micro-steps",
                             e.one.label, micro_steps, micro_steps),
                 "divide in one place: the framework (gradient_accumulation_steps of Accelerate or "
                 "DeepSpeed), or the program");
  }
  return std::nullopt;
}

Found sum_over_ranks(const Evidence& e) {
  const auto factor = e.is_of_gradients() ? e.of_gradients() : std::nullopt;
  if (e.one.world_size < 2 || near(factor, 1.0)) {
    return std::nullopt;
  }
  const bool is_sum = near(factor, e.one.world_size);
  if (!is_sum && !near(factor, 1.0 / e.one.world_size)) {
    return std::nullopt;
  }
  return is_sum ? cause("sum_over_ranks",
                        fmt::format("the gradients of {} are {} times as large: they are the sum "
                                    "over its ranks, not the mean",
                                    e.one.label, e.one.world_size),
                        "divide by the number of ranks (ReduceOp.AVG, gradient_divide_factor), or "
                        "reduction of the loss")
                : cause("mean_twice",
                        fmt::format("the gradients of {} are 1/{} as large: they are divided twice "
                                    "by the number of its ranks",
                                    e.one.label, e.one.world_size),
                        "the program divides what the framework has divided: remove one of them");
}

Found unscaled(const Evidence& e) {
  const double scale = e.step().scale;
  if (scale == 1.0 || !near(e.is_of_gradients() ? e.of_gradients() : std::nullopt, scale)) {
    return std::nullopt;
  }
  return cause(
      "not_unscaled",
      fmt::format("the gradients of {} still have the loss scale {:g}", e.one.label, scale),
      "scaler.step(optimizer), or scaler.unscale_(optimizer) before the step");
}

Found not_reduced(const Evidence& e) {
  if (!e.is(Kind::ranks_differ) || e.found() == "ranks agree") {
    return std::nullopt;
  }
  if (e.first.phase == "publication") {
    return cause("ranks_update_differently",
                 "the ranks of " + e.one.label + " update their copies of the weights differently",
                 "the same settings, gradients and random numbers of the optimizer on all ranks");
  }
  if (e.first.phase == "initial weights" || e.first.phase == "buffers") {
    return std::nullopt;
  }
  return cause("not_reduced",
               "the gradients of " + e.one.label + " are not reduced: each rank has its own",
               "call the wrapped model (not model.module), leave no_sync for the last micro-step, "
               "and change no gradient on one rank only");
}

Found mean_of_means(const Evidence& e) {
  const int parts = e.one.world_size * e.step().micro_steps;
  const int parts_of_other = e.other.world_size * e.step_of_other().micro_steps;
  const bool is_here = e.is(Kind::loss) || e.is(Kind::backward) ||
                       (e.is(Kind::gradient) && e.measured().of(Phase::backward).empty());
  if (!is_here || parts <= parts_of_other || e.of_gradients().has_value()) {
    return std::nullopt;
  }
  for (const auto& [name, data] : e.step().data) {
    if (data.rows_of.size() > 1) {
      return cause(
          "unequal_batches",
          fmt::format("the batches of {} have {} to {} rows, and their means count the same",
                      e.one.label, *data.rows_of.begin(), *data.rows_of.rbegin()),
          "batches of one size (drop_last, even_batches), or weights by the number of rows");
    }
  }
  return cause(
      "mean_over_tokens",
      fmt::format("{} takes the mean of the means of {} batches, {} that of {}: tokens (or "
                  "samples) of small batches count more",
                  e.one.label, parts, e.other.label, parts_of_other),
      "divide the sum of the losses by the tokens of all micro-steps and ranks "
      "(num_items_in_batch, average_tokens_across_devices)");
}

Found other_loss(const Evidence& e) {
  return e.is_a && e.is(Kind::loss)
             ? cause(
                   "loss", "the models' outputs agree, and the losses do not",
                   "the loss function: what it averages over, shifted or ignored targets, weights, "
                   "label smoothing, added terms")
             : Found();
}

Found detached(const Evidence& e) {
  if (!e.is_a || !e.is(Kind::backward) || !e.step().loss || !e.step_of_other().loss) {
    return std::nullopt;
  }
  return cause(
      "detached", "the losses agree, and their gradients do not",
      "a term of the loss without gradient (detach, .item(), no_grad), or gradients that a "
      "hook or a function of autograd changes");
}

/// Factor by which a step has clipped its gradients.
double clip_factor(const Step& step) {
  return step.clip && step.clip->norm && step.clip->function == "norm"
             ? std::min(1.0, step.clip->limit / *step.clip->norm)
             : 1.0;
}

Found not_zeroed(const Evidence& e) {
  if (e.first.step == 0 || !(e.is(Kind::gradient) || e.is(Kind::clip))) {
    return std::nullopt;
  }
  std::vector<Measured> sums = e.measured().of(Phase::gradient);
  const double factor_a = clip_factor(e.is_a ? e.step() : e.step_of_other());
  const double factor_b = clip_factor(e.is_a ? e.step_of_other() : e.step());
  for (Measured& each : sums) {  // this side's gradient without that of its last step
    const std::string name = e.is_a ? each.name : e.comparison.names.in_b(each.name);
    const Whole* before = Evidence::at(e.one, e.first.step - 1).of(Phase::gradient).find(name);
    Sketch& sketch = e.is_a ? each.sketch_a : each.sketch_b;
    for (std::size_t i = 0; before != nullptr && i < sketch.size(); ++i) {
      each.sketch_a[i] /= factor_a;
      each.sketch_b[i] /= factor_b;
      sketch[i] -= before->sketch[i];
    }
  }
  const auto factor = common_factor(sums);
  return !near(factor, 1.0) ? Found()
                            : cause("not_zeroed",
                                    "the gradients of " + e.one.label +
                                        " contain those of the last step: they are not zeroed",
                                    "optimizer.zero_grad() in each step, of all optimizers");
}

Found clipping(const Evidence& e) {
  const auto& one = e.step().clip;
  const auto& other = e.step_of_other().clip;
  if (!e.is(Kind::clip)) {
    return std::nullopt;
  }
  if (!one && other) {
    return cause(
        "no_clipping",
        fmt::format("{} does not clip, {} clips to {:g}", e.one.label, e.other.label, other->limit),
        "gradient_clipping of DeepSpeed, max_grad_norm, accelerator.clip_grad_norm_");
  }
  if (one && !one->ranks_agree) {
    return cause(
        "local_clipping",
        "the ranks of " + e.one.label + " clip by different norms: each by its own part",
        "clip by the norm of all ranks: accelerator.clip_grad_norm_, model.clip_grad_norm_ "
        "of FSDP, or clip_grad_norm_ on DTensors");
  }
  if (!one || !other || !e.is_a) {
    return std::nullopt;
  }
  if (one->function != other->function || std::abs(one->limit - other->limit) > 1e-6 * one->limit) {
    return cause("clip_limit",
                 fmt::format("A clips by {} to {:g}, B by {} to {:g}", one->function, one->limit,
                             other->function, other->limit),
                 "max_grad_norm, gradient_clipping");
  }
  for (const Side* side : {&e.one, &e.other}) {
    const Step& step = Evidence::at(*side, e.first.step);
    const Step& against = Evidence::at(side == &e.one ? e.other : e.one, e.first.step);
    if (step.scale > 1.0 && step.clip->norm && against.clip->norm &&
        near(*step.clip->norm / *against.clip->norm, step.scale, 0.1)) {
      return cause("clipped_before_unscaling",
                   fmt::format("{} clips gradients that still have the loss scale {:g}",
                               side->label, step.scale),
                   "scaler.unscale_(optimizer) before clip_grad_norm_");
    }
  }
  return std::nullopt;
}

Found other_clipping(const Evidence& e) {
  return e.is_a && e.is(Kind::clip)
             ? cause("clipping", "the sides clip the same gradients differently",
                     "when and by which function gradients are clipped")
             : Found();
}

Found local_norm(const Evidence& e) {
  const auto& one = e.step().clip;
  const auto& other = e.step_of_other().clip;
  const auto& parts = e.step().squares_of_parts;
  const double whole = e.step_of_other().gradient_norm();
  if (e.is_of_gradients() && !one && parts.size() > 1 &&
      std::ranges::all_of(
          parts, [&](const auto& rank) { return near(std::sqrt(rank.second), whole, 0.01); })) {
    return cause("local_clipping",
                 fmt::format("the part of each rank of {} has the norm {:.4g}, which all gradients "
                             "of {} have together: each rank clips by its own part",
                             e.one.label, whole, e.other.label),
                 "clip by the norm of all ranks: accelerator.clip_grad_norm_, "
                 "model.clip_grad_norm_ of FSDP, or clip_grad_norm_ on DTensors");
  }
  if (!e.is(Kind::clip) || e.one.world_size < 2 || !one || !other || !one->norm || !other->norm ||
      !one->ranks_agree || *one->norm >= 0.98 * *other->norm) {
    return std::nullopt;
  }
  return cause("local_clipping",
               fmt::format("{} clips by the norm {:.4g} and {} by {:.4g}: that of a part of the "
                           "gradients",
                           e.one.label, *one->norm, e.other.label, *other->norm),
               "clip by the norm of all ranks' shards");
}

Found gradient_missing(const Evidence& e) {
  if (!e.is(Kind::gradient_missing) || e.found() != "no gradient") {
    return std::nullopt;
  }
  const ModelParameter* parameter = e.one.parameter(e.name());
  if (parameter != nullptr && !parameter->trained) {
    return cause("frozen", e.name() + " is frozen in " + e.one.label,
                 "requires_grad, and when it is set: before wrapping and before the optimizer");
  }
  return cause(
      "unused",
      e.name() + " is not used in the forward of " + e.one.label + ", or has lost its gradient",
      "find_unused_parameters, detach, no_grad, branches of the model");
}

Found incomplete_accumulation(const Evidence& e) {
  if (!e.is(Kind::gradient) || e.step().micro_steps < 2 || e.of_gradients().has_value() ||
      e.measured().of(Phase::backward).empty()) {
    return std::nullopt;
  }
  return cause("micro_steps_lost",
               "the backwards agree, and the gradients of " + e.one.label +
                   " are not those of all its micro-steps",
               "zero_grad only after the step, and no_sync in all micro-steps but the last");
}

Found reduction_type(const Evidence& e) {
  const bool fits = e.first.distance > 1e-4 && e.first.distance < 0.1;
  if (!e.is_a || !e.is(Kind::gradient) || !fits || e.comparison.precision != "float32" ||
      e.of_gradients().value_or(1.0) < 0.9) {
    return std::nullopt;
  }
  return cause("reduction_type", "the distance is that of a reduction in 16 bits on one side",
               "reduce_dtype of FSDP, communication_data_type of DeepSpeed, DDP's hooks of "
               "compression");
}

// ---- optimizer

Found untied(const Evidence& e) {
  for (const ModelParameter& each : e.other.parameters) {
    const ModelParameter* own = e.one.parameter(each.name);
    if (!each.same_as.empty() && own != nullptr && own->same_as.empty() && !e.is(Kind::data)) {
      return cause("untied",
                   fmt::format("{} and {} are one parameter in {} and two in {}", each.name,
                               each.same_as, e.other.label, e.one.label),
                   "tie the weights after loading and before wrapping (tie_weights); wrap both in "
                   "one unit");
    }
  }
  return std::nullopt;
}

Found updated_twice(const Evidence& e) {
  const auto uses = e.step().uses.find(e.name());
  const auto of_other = e.step_of_other().uses.find(e.name_of_other());
  if (!e.is(Kind::updated) || uses == e.step().uses.end() ||
      of_other == e.step_of_other().uses.end() || uses->second <= of_other->second) {
    return std::nullopt;
  }
  return cause("updated_twice",
               fmt::format("{} is {} times in the groups of {}: it is updated as often", e.name(),
                           uses->second, e.one.label),
               "list each parameter once, a tied one too");
}

Found learning_rate(const Evidence& e) {
  const auto lr = setting_of(e.step(), e.name(), "lr");
  const auto lr_of_other = setting_of(e.step_of_other(), e.name_of_other(), "lr");
  if (!e.is(Kind::setting) || !lr || !lr_of_other || *lr == *lr_of_other ||
      !e.first.a.starts_with("lr ")) {
    return std::nullopt;
  }
  const auto at = [](const Side& side, const std::string& name, int step) {
    return step < static_cast<int>(side.steps.size())
               ? setting_of(Evidence::at(side, step), name, "lr")
               : std::nullopt;
  };
  const int ranks = e.one.world_size * e.step().micro_steps;
  const int step = e.first.step;
  const auto start = at(e.one, e.name(), 0);
  for (const int times : {e.one.world_size, e.step().micro_steps, ranks}) {
    // The first step comes after one step of the schedule, or after those of its micro-steps.
    const auto then = at(e.other, e.name_of_other(), step * times);
    const auto later = at(e.other, e.name_of_other(), step * times + times - 1);
    const bool fits = (step > 0 && near(then, *lr, 1e-5)) || near(later, *lr, 1e-5);
    if (times > 1 && fits) {
      return cause(
          "scheduler_steps",
          fmt::format("the schedule of {} goes {} times as fast: it steps for each rank or "
                      "micro-step",
                      e.one.label, times),
          "step the scheduler once per step of the optimizer (step_scheduler_with_optimizer, "
          "split_batches of Accelerate count the ranks)");
    }
  }
  return step > 0 && start && near(*lr, *start, 1e-6)
             ? cause("no_scheduler", "the learning rate of " + e.one.label + " does not change",
                     "lr_scheduler.step(), and the scheduler's optimizer")
             : Found();
}

Found other_learning_rate(const Evidence& e) {
  if (!e.is_a || !e.is(Kind::setting) || !e.first.a.starts_with("lr ")) {
    return std::nullopt;
  }
  return e.first.step > 0
             ? cause("schedule", "the schedules of the learning rate differ",
                     "steps of warm-up and of the whole training, when the scheduler steps")
             : cause("learning_rate",
                     "the learning rates differ: " + e.first.a + " in A, " + e.first.b + " in B",
                     "lr, and scaling by the number of ranks");
}

Found other_setting(const Evidence& e) {
  const std::string key = e.first.a.substr(0, e.first.a.find(' '));
  if (!e.is_a || !e.is(Kind::setting) || key == "lr") {
    return std::nullopt;
  }
  return cause(key == "weight_decay" ? "weight_decay" : "optimizer_setting",
               fmt::format("{} of {} is {} in A and {} in B",
                           key == "weight_decay" ? "the weight decay" : key, e.first.name,
                           e.first.a.substr(e.first.a.find(' ') + 1),
                           e.first.b.substr(e.first.b.find(' ') + 1)),
               key == "weight_decay"
                   ? "which parameters are in which group: biases and norms without decay"
                   : "the optimizer's arguments");
}

Found unchanged(const Evidence& e) {
  if (!e.is(Kind::unchanged) || e.step().changed != 0) {
    return std::nullopt;
  }
  return cause("optimizer_before_wrapping",
               "the steps of " + e.one.label +
                   " change no parameter: its optimizer has others than "
                   "the model",
               "make the optimizer after wrapping, with the wrapped model's parameters");
}

Found skipped(const Evidence& e) {
  if (!e.is(Kind::skipped) || !e.step().skipped) {
    return std::nullopt;
  }
  return cause("skipped",
               e.one.label + " skips the step: its loss scaler found values that are not finite",
               "init_scale, initial_scale_power, or bf16 in place of fp16");
}

Found other_rule(const Evidence& e) {
  if (!e.is_a || !e.is(Kind::updated)) {
    return std::nullopt;
  }
  if (e.first.step > 0) {
    return cause(
        "optimizer_state",
        fmt::format("the same gradients and settings give other updates, and gave the same "
                    "before step {}",
                    e.first.step),
        "the optimizer's state: saved and loaded with the weights, of one optimizer, and "
        "not changed between steps");
  }
  return cause("update_rule",
               fmt::format("the same gradients and settings give other updates ({} and {})",
                           e.step().optimizer, e.step_of_other().optimizer),
               "bias correction, eps inside or outside of the root, decay coupled or not "
               "(adam_w_mode), type of the states");
}

constexpr std::array kRules = {
    same_data,
    rank_without_data,
    last_batch,
    batch_size,
    data_order,
    weight_type,
    initial_weights,
    buffers,
    evaluation_mode,
    dropout,
    batch_norm,
    stale_weights,
    reduced_precision,
    accumulation,
    sum_over_ranks,
    local_norm,
    not_reduced,
    not_zeroed,
    clipping,
    unscaled,
    other_clipping,
    mean_of_means,
    other_loss,
    detached,
    untied,
    gradient_missing,
    incomplete_accumulation,
    reduction_type,
    updated_twice,
    learning_rate,
    other_learning_rate,
    other_setting,
    unchanged,
    skipped,
    other_rule,
};

}  // namespace

std::vector<Cause> causes_of(const Side& a, const Side& b, const Comparison& comparison) {
  std::vector<Cause> causes;
  for (const auto rule : kRules) {
    for (const bool is_a : {true, false}) {
      const Evidence evidence{is_a ? a : b, is_a ? b : a, comparison, *comparison.first, is_a};
      if (auto found = rule(evidence)) {
        causes.push_back(std::move(*found));
      }
    }
  }
  return causes;
}

}  // namespace acc::launcher::commands::compare
