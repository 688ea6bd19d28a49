// SPDX-License-Identifier: Apache-2.0
// The first place where two recordings part. Bounds: docs/compare.md.
#include "commands/compare/compare.hpp"

#include "acc/base/json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace acc::launcher::commands::compare {
namespace {

using Json = nlohmann::json;

// Factors of the bounds. Measured with equal pairs (docs/compare.md), with room of a factor of 4.
constexpr double kOfOutputs = 8.0;    ///< roundings of an output, per square root of the depth
constexpr double kOfGradients = 8.0;  ///< those of a gradient
constexpr double kOfEarlier = 4.0;    ///< growth of a distance from one tensor to the next
constexpr double kOfWeights = 30.0;   ///< growth from weights to outputs
constexpr double kOfNoise = 8.0;      ///< gradients below this many roundings are noise
/// Roundings of the sketches of outputs, which are sums in float32.
constexpr double kOfSketches = 2e-6;
/// Copies of ranks are the same bits; their sketches are sums in float32.
constexpr double kOfCopies = 2e-6;

/// Half the distance of two neighbouring numbers at 1, as far as tensors are compared in the type.
double rounding_of(std::string_view dtype) {
  if (dtype == "bfloat16") {
    return 0x1p-8;
  }
  if (dtype == "float16") {
    return 0x1p-11;
  }
  return dtype == "float64" ? 0x1p-53 : dtype.starts_with("float8") ? 0x1p-3 : 0x1p-24;
}

/// Roundings of the sketch of a parameter: sums of up to 4096 numbers in float32.
double rounding_of_sketch(double count) {
  return 0x1p-23 * std::sqrt(std::min(count, 4096.0));
}

bool is_float(std::string_view dtype) {
  return dtype.starts_with("float") || dtype.starts_with("bfloat");
}

/// True if two values of a setting are the same; numbers as far as float32 can tell.
bool same_setting(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const double x = a.get<double>();
    const double y = b.get<double>();
    return std::abs(x - y) <= 1e-6 * std::max(std::abs(x), std::abs(y));
  }
  return a.is_array() && b.is_array() && a.size() == b.size()
             ? std::equal(a.begin(), a.end(), b.begin(), same_setting)
             : a == b;
}

bool same_setting(const std::string& a, const std::string& b) {
  return a == b || same_setting(json_from_text<Json>(a, nullptr, false),
                                json_from_text<Json>(b, nullptr, false));
}

/// Settings that choose how an optimizer computes, and not what.
bool is_of_computing(std::string_view setting) {
  return setting == "foreach" || setting == "fused" || setting == "capturable" ||
         setting == "differentiable" || setting == "initial_lr" || setting == "step";
}

std::string norm_text(const Measured& measured, bool of_a) {
  const bool is_finite = of_a ? measured.is_finite_a() : measured.is_finite_b();
  return is_finite ? fmt::format("norm {:.6g}", of_a ? measured.norm_a : measured.norm_b)
                   : "not finite";
}

/// Distance that rounding explains, for the tensors of one step in the order of computing.
struct Noise {
  double rounding = 0.0;  ///< of the coarsest type that outputs have
  double weights = 0.0;   ///< relative distance of the weights that the step began with
  double earlier = 0.0;   ///< largest distance of the step so far

  [[nodiscard]] double bound(double roundings, double depth) const {
    return roundings * rounding * std::sqrt(depth + 1.0) + kOfWeights * weights +
           kOfEarlier * earlier + kOfSketches;
  }
  /// Of numbers that are means over many, in which roundings cancel out.
  [[nodiscard]] double bound_of_mean() const {
    return 4.0 * rounding + kOfWeights * weights + earlier + kOfSketches;
  }
};

class Checker {
 public:
  Checker(const Side& a, const Side& b, Comparison& result) : a_(a), b_(b), result_(result) {
    result_.precision = "float64";
    const std::size_t steps = std::min({a.steps.size(), b.steps.size(), std::size_t{2}});
    for (std::size_t i = 0; i < steps; ++i) {
      find_precision(a.steps[i]);
      find_precision(b.steps[i]);
    }
    if (noise_.rounding == 0.0) {  // no outputs
      result_.precision = "float32";
      noise_.rounding = rounding_of("float32");
    }
  }

  /// Checks one step after the other, until one differs.
  void check() {
    for (step_ = 0; step_ < result_.measured.size() && !result_.first; ++step_) {
      using Check = bool (Checker::*)();
      for (const Check finds : {&Checker::data, &Checker::weights, &Checker::buffers,
                                &Checker::outputs, &Checker::loss, &Checker::output_gradients,
                                &Checker::gradients, &Checker::optimizer, &Checker::updates}) {
        if ((this->*finds)()) {
          break;
        }
      }
      noise_.earlier = 0.0;
    }
  }

 private:
  [[nodiscard]] const Step& of_a() const { return a_.steps[step_]; }
  [[nodiscard]] const Step& of_b() const { return b_.steps[step_]; }
  [[nodiscard]] const MeasuredStep& measured() const { return result_.measured[step_]; }

  void find_precision(const Step& step) {
    for (const Whole& output : step.of(Phase::forward).list()) {
      if (is_float(output.dtype) && rounding_of(output.dtype) > noise_.rounding) {
        noise_.rounding = rounding_of(output.dtype);
        result_.precision = output.dtype;
      }
    }
    result_.depth = std::max(result_.depth, step.of(Phase::forward).list().size());
  }

  bool differ(Kind kind, std::string phase, const std::string& name, std::string a, std::string b,
              double distance = 0.0, double bound = 0.0) {
    result_.first = Difference{kind,
                               static_cast<int>(step_),
                               std::move(phase),
                               "",
                               name,
                               std::move(a),
                               std::move(b),
                               distance,
                               bound};
    result_.first->unit = module_of(a_, name);
    return true;
  }

  /// True if the distance is not below the bound. Remembers the nearest one of each phase.
  bool exceeds(const std::string& phase, const std::string& name, double distance, double bound) {
    if (!(distance <= bound)) {
      return true;
    }
    const auto found = std::ranges::find(result_.nearest, phase, &Nearest::phase);
    const Nearest now{phase, name, static_cast<int>(step_), distance, bound};
    if (found == result_.nearest.end()) {
      result_.nearest.push_back(now);
    } else if (distance / bound > found->distance / found->bound) {
      *found = now;
    }
    return false;
  }

  bool data() {
    for (const auto& [name, a] : of_a().data) {
      const auto found = of_b().data.find(name);
      if (found == of_b().data.end() || found->second.dtype != a.dtype) {
        continue;
      }
      const Data& b = found->second;
      const bool is_constant = a.forwards.size() == 1 && a.forwards == b.forwards;
      if (a.any_order != b.any_order && !is_constant && !are_near(a, b)) {
        return differ(Kind::data, "data", "argument " + name,
                      fmt::format("{} rows, sum {:016x}", a.rows, a.any_order),
                      fmt::format("{} rows, sum {:016x}", b.rows, b.any_order));
      }
    }
    return false;
  }

  /// Inputs that depend on weights, as those of a GAN's discriminator, are equal to rounding.
  [[nodiscard]] bool are_near(const Data& a, const Data& b) const {
    return a.value && b.value && a.rows == b.rows && step_ > 0 &&
           distance(a.value->sketch, b.value->sketch) <=
               noise_.bound(kOfOutputs, static_cast<double>(result_.depth)) *
                   std::sqrt(std::max(a.value->squares, b.value->squares));
  }

  /// What the optimizer begins with: type and values.
  bool weights() {
    for (const Measured& each : measured().of(Phase::weights)) {
      if (each.a->dtype != each.b->dtype) {
        return differ(Kind::weight_type, "weights", each.name, each.a->dtype, each.b->dtype);
      }
    }
    for (const Measured& each : measured().of(Phase::weights)) {
      const double bound = rounding_of_sketch(each.a->count);
      if (ranks_differ(each, "initial weights") ||
          exceeds("initial weights", each.name, each.relative, bound)) {
        return result_.first.has_value() ||
               differ(Kind::weights, "initial weights", each.name, norm_text(each, true),
                      norm_text(each, false), each.relative, bound);
      }
    }
    return false;
  }

  bool ranks_differ(const Measured& each, const std::string& phase) {
    for (const Side* side : {&a_, &b_}) {
      const Whole& whole = side == &a_ ? *each.a : *each.b;
      if (whole.spread > kOfCopies) {
        const std::string apart =
            fmt::format("ranks 0 and {} differ by {:.2g}", whole.other_rank, whole.spread);
        const std::string other = "ranks agree";
        return differ(Kind::ranks_differ, phase, each.name, side == &a_ ? apart : other,
                      side == &a_ ? other : apart, whole.spread, kOfCopies);
      }
    }
    return false;
  }

  bool buffers() {
    for (const Measured& each : measured().of(Phase::buffer)) {
      if (of_a().micro_steps != of_b().micro_steps) {
        return false;  // they change in each forward
      }
      const double bound = noise_.bound(kOfOutputs, 0.0);
      if (!is_float(each.a->dtype) || each.a->dtype != each.b->dtype) {
        continue;
      }
      const bool only_one_differs = each.a->spread <= kOfCopies || each.b->spread <= kOfCopies;
      if ((only_one_differs && ranks_differ(each, "buffers")) ||
          exceeds("buffers", each.name, each.relative, bound)) {
        return result_.first.has_value() ||
               differ(Kind::buffer, "buffers", each.name, norm_text(each, true),
                      norm_text(each, false), each.relative, bound);
      }
    }
    return false;
  }

  /// True if the first difference is in what modules computed: `list`, in the order of computing.
  bool tensors(const std::vector<Measured>& list, Kind kind, const std::string& phase,
               double roundings, std::size_t depth) {
    for (const Measured& each : list) {
      const double by_bias = kind == Kind::forward ? distance_by_bias(each) : 0.0;
      const double bound = noise_.bound(roundings, static_cast<double>(depth++)) + by_bias;
      if (exceeds(phase, each.name, each.relative, bound)) {
        return differ(kind, phase, each.name, norm_text(each, true), norm_text(each, false),
                      each.relative, bound);
      }
      noise_.earlier = std::max(noise_.earlier, each.relative - by_bias);
    }
    return false;
  }

  /// Distance of an output that the module's own vectors explain. That of a vector may be large:
  /// keys of attention have a bias whose gradient is rounding alone.
  [[nodiscard]] double distance_by_bias(const Measured& output) const {
    const auto found = vectors_apart_.find(module_of(a_, output.name));
    const double norm = std::max(output.norm_a, output.norm_b);
    if (found == vectors_apart_.end() || norm == 0.0) {
      return 0.0;
    }
    const auto& [apart, count] = found->second;  // added to each row, and a sketch adds up rows
    return 3.0 * apart * output.a->count / count / norm;
  }

  bool outputs() {
    // The optimizer's values were the same after the last step: the model has others.
    const bool knows_updates = step_ > 0 && !result_.measured[step_ - 1].updates.empty();
    const bool differs =
        tensors(measured().of(Phase::forward), Kind::forward, "outputs", kOfOutputs, 0);
    if (differs) {
      result_.first->phase = knows_updates ? "publication" : "forward";
    }
    return differs;
  }

  bool loss() {
    find_loss_factor();
    if (!of_a().loss || !of_b().loss) {
      return false;
    }
    const double a = *of_a().loss;
    const double b = *of_b().loss * loss_factor_;
    if (!std::isfinite(a) && !std::isfinite(b)) {
      return false;
    }
    const double apart = std::abs(a - b) / std::max(std::abs(a), std::abs(b));
    const double bound = noise_.bound_of_mean();
    return a != b && exceeds("loss", "loss", apart, bound) &&
           differ(Kind::loss, "forward", "loss", fmt::format("{:.7g}", a),
                  fmt::format("{:.7g}", *of_b().loss), apart, bound);
  }

  /// A framework may divide by micro-steps or ranks after the backward: if the gradients are the
  /// same, the losses may have such a factor.
  void find_loss_factor() {
    loss_factor_ = 1.0;
    const auto of_gradients = gradient_factor(of_a(), of_b(), measured());
    if (!measured().of(Phase::gradient).empty() &&
        !(of_gradients && std::abs(*of_gradients - 1.0) < 0.05)) {
      return;
    }
    const auto of_backward = common_factor(measured().of(Phase::backward));
    const double factor =
        of_backward.value_or(of_a().loss && of_b().loss ? *of_a().loss / *of_b().loss : 1.0);
    for (const double x : {of_a().micro_steps, a_.world_size, 1}) {
      for (const double y : {of_b().micro_steps, b_.world_size, 1}) {
        if (x > 0 && y > 0 && std::abs(factor * y / x - 1.0) < 0.02) {
          loss_factor_ = x / y;
          return;
        }
      }
    }
  }

  bool output_gradients() {
    std::vector<Measured> list = measured().of(Phase::backward);
    if (loss_factor_ != 1.0) {
      for (Measured& each : list) {
        each.norm_b *= loss_factor_;
        for (double& number : each.sketch_b) {
          number *= loss_factor_;
        }
        set_distance(each);
      }
    }
    return tensors(list, Kind::backward, "backward", kOfGradients, result_.depth);
  }

  /// Squares of the gradients of each module's outputs.
  [[nodiscard]] std::map<std::string, double> squares_of_backward() const {
    std::map<std::string, double> squares;
    for (const Measured& each : measured().of(Phase::backward)) {
      squares[module_of(a_, each.name)] += each.norm_a * each.norm_a;
    }
    return squares;
  }

  bool gradients() {
    if (missing_gradient()) {
      return true;
    }
    const std::string phase = gradient_phase();
    const double all = std::max(of_a().gradient_norm(), of_b().gradient_norm());
    const Noise before = noise_;
    const std::map<std::string, double> squares = squares_of_backward();
    for (const Measured& each : measured().of(Phase::gradient)) {
      // What rounding alone leaves: of a bias, by the gradients that it is the sum of.
      const auto of_outputs = squares.find(module_of(a_, each.name));
      const double noise =
          kOfNoise * noise_.rounding *
          (0.25 * all + std::sqrt(of_outputs == squares.end() ? 0.0 : of_outputs->second));
      const double norm = std::max(each.norm_a, each.norm_b);
      const double rounding = std::max(rounding_of(each.a->dtype), rounding_of(each.b->dtype));
      const double bound = before.bound(kOfGradients, 2.0 * static_cast<double>(result_.depth)) +
                           kOfGradients * rounding;
      is_noise_[each.name] = norm <= 4.0 * noise;
      const double allowed = bound + (norm > 0.0 && norm < all * 2.0 ? noise / norm : 0.0);
      if (ranks_differ(each, phase)) {
        return true;
      }
      if (exceeds("gradients", each.name, each.relative, allowed)) {
        return differ(phase == "clipping" ? Kind::clip : Kind::gradient, phase, each.name,
                      norm_text(each, true), norm_text(each, false), each.relative, allowed);
      }
      double& seen = of_gradient_[each.name];
      seen = std::max({seen, each.relative, bound / kOfGradients});
      const double of_elements = each.apart / std::sqrt(each.a->count);
      of_elements_[each.name] = std::max(of_elements_[each.name], of_elements);
    }
    const double other = std::min(of_a().gradient_norm(), of_b().gradient_norm());
    const double apart = all > 0.0 ? (all - other) / all : 0.0;
    const double bound = before.bound_of_mean();
    if (!measured().of(Phase::gradient).empty() && std::isfinite(all) &&
        exceeds("gradients", "all gradients", apart, bound)) {
      return differ(phase == "clipping" ? Kind::clip : Kind::gradient, phase, "all gradients",
                    fmt::format("norm {:.6g}", of_a().gradient_norm()),
                    fmt::format("norm {:.6g}", of_b().gradient_norm()), apart, bound);
    }
    return norm_before_clipping(
        before.bound(kOfGradients, 2.0 * static_cast<double>(result_.depth)));
  }

  /// Clipping hides a factor of the gradients: what it was told of their norm does not.
  bool norm_before_clipping(double bound) {
    const auto& a = of_a().clip;
    const auto& b = of_b().clip;
    if (!a || !b || !a->norm || !b->norm || a->function != b->function) {
      return false;
    }
    const double apart = std::abs(*a->norm - *b->norm) / std::max(*a->norm, *b->norm);
    return std::isfinite(apart) && exceeds("gradients", "norm before clipping", apart, bound) &&
           differ(Kind::gradient, phase_of_backward(), "norm before clipping",
                  fmt::format("norm {:.6g}", *a->norm), fmt::format("norm {:.6g}", *b->norm), apart,
                  bound);
  }

  [[nodiscard]] std::string phase_of_backward() const {
    const bool is_reduced =
        a_.world_size * of_a().micro_steps > 1 || b_.world_size * of_b().micro_steps > 1;
    return is_reduced ? "reduction" : "backward";
  }

  bool missing_gradient() {
    for (const auto& [one, other, of_a] :
         {std::tuple(&of_a(), &of_b(), true), std::tuple(&of_b(), &of_a(), false)}) {
      for (const Whole& each : one->of(Phase::gradient).list()) {
        const std::string name =
            of_a ? result_.names.in_b(each.name) : result_.names.in_a(each.name);
        const bool is_known = (of_a ? b_ : a_).parameter(name) != nullptr;
        if (each.squares > 0.0 && is_known && !other->of(Phase::gradient).list().empty() &&
            other->of(Phase::gradient).find(name) == nullptr) {
          const std::string norm = fmt::format("norm {:.6g}", each.norm());
          return differ(Kind::gradient_missing, "backward", of_a ? each.name : name,
                        of_a ? norm : "no gradient", of_a ? "no gradient" : norm);
        }
      }
    }
    return false;
  }

  /// Names the phase of a difference of gradients: clipping, if they were the same before.
  [[nodiscard]] std::string gradient_phase() const {
    const auto norm_before = [](const Step& step) {
      return step.clip && step.clip->norm ? *step.clip->norm : step.gradient_norm();
    };
    const bool clips = of_a().clip || of_b().clip;
    const bool both_clip = of_a().clip && of_b().clip;
    const double a = norm_before(of_a());
    const double b = norm_before(of_b());
    const bool ranks_agree =
        (!of_a().clip || of_a().clip->ranks_agree) && (!of_b().clip || of_b().clip->ranks_agree);
    const bool same_norm = std::abs(a - b) <= 0.02 * std::max(a, b);
    const auto factor = common_factor(measured().of(Phase::gradient));
    const bool has_factor = factor && std::abs(*factor - 1.0) > 0.02;
    const bool same_rule = both_clip && of_a().clip->function == of_b().clip->function &&
                           of_a().clip->limit == of_b().clip->limit;
    const double scale = std::max(of_a().scale, of_b().scale);
    const bool is_scaled =
        both_clip && scale > 1.0 && std::max(a, b) > 0.5 * scale * std::min(a, b);
    if (clips && (!ranks_agree || is_scaled || (has_factor && (same_norm || !both_clip)) ||
                  (same_norm && !same_rule))) {
      return "clipping";
    }
    return phase_of_backward();
  }

  bool optimizer() {
    if (of_a().skipped != of_b().skipped) {
      return differ(Kind::skipped, "optimizer", "step", of_a().skipped ? "skipped" : "done",
                    of_b().skipped ? "skipped" : "done");
    }
    for (const auto& [name, settings] : of_a().settings) {
      const auto other = of_b().settings.find(result_.names.in_b(name));
      if (other == of_b().settings.end()) {
        continue;
      }
      for (const auto& [key, value] : settings) {
        const auto found = other->second.find(key);
        if (found != other->second.end() && !is_of_computing(key) &&
            !same_setting(value, found->second)) {
          differ(Kind::setting, "optimizer", name, fmt::format("{} {}", key, value),
                 fmt::format("{} {}", key, found->second));
          return true;
        }
      }
    }
    return false;
  }

  bool updates() {
    if ((of_a().changed == 0) != (of_b().changed == 0)) {
      return differ(Kind::unchanged, "optimizer", "weights",
                    fmt::format("{} parameters have changed", of_a().changed),
                    fmt::format("{} parameters have changed", of_b().changed));
    }
    for (const Measured& each : measured().of(Phase::updated)) {
      if (ranks_differ(each, "publication")) {
        return true;
      }
    }
    const bool is_plain = of_a().optimizer.find("SGD") != std::string::npos &&
                          of_b().optimizer.find("SGD") != std::string::npos;
    for (const Measured& each : measured().updates) {
      if (is_noise_[each.name]) {
        continue;
      }
      // An optimizer that divides by the size of the gradient turns the roundings of a gradient
      // near zero into whole updates: of all elements about as many as the roundings are large.
      const double seen = of_gradient_[each.name];
      const double of_gradient =
          is_plain ? kOfEarlier * seen : std::max(4.0 * std::sqrt(seen), of_zeros(each));
      const double whole = std::max(each.a->norm(), each.b->norm());
      const double update = std::max(each.norm_a, each.norm_b);
      const double rounding =
          2.0 * std::max(rounding_of(each.a->dtype), rounding_of(each.b->dtype)) +
          rounding_of_sketch(each.a->count);
      const double bound = of_gradient + noise_.bound(kOfGradients, 0.0) +
                           (update > 0 ? rounding * whole / update : 0.0);
      if (exceeds("update", each.name, each.relative, bound)) {
        return differ(Kind::updated, "optimizer", each.name,
                      fmt::format("update {:.6g}", each.norm_a),
                      fmt::format("update {:.6g}", each.norm_b), each.relative, bound);
      }
    }
    follow_weights();
    return false;
  }

  /// In a vector whole ranges may have no gradient but roundings, as the keys' part of a bias of
  /// attention. They are divided by eps, as long as they are smaller than it.
  [[nodiscard]] double of_zeros(const Measured& update) {
    const ModelParameter* parameter = a_.parameter(update.name);
    const auto settings = of_a().settings.find(update.name);
    if (parameter == nullptr || parameter->shape.size() != 1) {
      return 0.0;
    }
    double eps = 0.0;
    if (settings != of_a().settings.end() && settings->second.contains("eps")) {
      eps = std::strtod(settings->second.at("eps").c_str(), nullptr);
    }
    constexpr double kOpposite = 2.0;
    return std::min(kOpposite, 8.0 * of_elements_[update.name] / std::max(eps, 1e-30));
  }

  void follow_weights() {
    double apart = 0.0;
    double all = 0.0;
    for (const Measured& each : measured().of(Phase::updated)) {
      const ModelParameter* parameter = a_.parameter(each.name);
      if (parameter != nullptr && parameter->shape.size() == 1 && each.apart > 0.0) {
        vectors_apart_[module_of(a_, each.name)] = {each.apart, each.a->count};
      }
      if (!is_noise_[each.name]) {
        apart += each.apart * each.apart;
        all += each.norm_a * each.norm_a;
      }
    }
    if (all > 0.0) {
      noise_.weights = std::max(noise_.weights, std::sqrt(apart / all));
    }
  }

  const Side& a_;
  const Side& b_;
  Comparison& result_;
  std::size_t step_ = 0;
  Noise noise_;
  double loss_factor_ = 1.0;
  /// Of each module: distance and size of its vector of parameters.
  std::map<std::string, std::pair<double, double>> vectors_apart_;
  std::map<std::string, bool> is_noise_;       ///< parameters whose gradient is only rounding
  std::map<std::string, double> of_elements_;  ///< the same per element, not relative
  std::map<std::string, double> of_gradient_;  ///< largest distance of a parameter's gradients
};

std::vector<Setting> different_settings(const Side& a, const Side& b) {
  std::vector<Setting> list;
  const auto add = [&](std::string name, const std::string& of_a, const std::string& of_b) {
    if (of_a != of_b) {
      list.push_back({std::move(name), of_a, of_b});
    }
  };
  add("number of ranks", std::to_string(a.world_size), std::to_string(b.world_size));
  add("engine", a.engine, b.engine);
  add("wrapper", a.wrapper, b.wrapper);
  for (const auto& [name, version] : a.framework) {
    if (const auto found = b.framework.find(name); found != b.framework.end()) {
      add("version of " + name, version, found->second);
    }
  }
  if (a.steps.empty() || b.steps.empty()) {
    return list;
  }
  const Step& x = a.steps.front();
  const Step& y = b.steps.front();
  const auto dtypes = [](const Step& step, Phase phase) {
    std::set<std::string> names;
    for (const Whole& each : step.of(phase).list()) {
      names.insert(each.dtype);
    }
    return fmt::format("{}", fmt::join(names, " "));
  };
  const auto clipping = [](const Step& step) {
    return step.clip ? fmt::format("{} {:.6g}", step.clip->function, step.clip->limit) : "none";
  };
  add("micro-steps", std::to_string(x.micro_steps), std::to_string(y.micro_steps));
  add("dtype of outputs", dtypes(x, Phase::forward), dtypes(y, Phase::forward));
  add("dtype of weights", dtypes(x, Phase::weights), dtypes(y, Phase::weights));
  add("dtype of gradients", dtypes(x, Phase::gradient), dtypes(y, Phase::gradient));
  add("clipping", clipping(x), clipping(y));
  add("optimizer", x.optimizer, y.optimizer);
  add("parameters", std::to_string(a.parameters.size()), std::to_string(b.parameters.size()));
  return list;
}

/// What the user should know about the recordings, whether they differ or not.
std::vector<std::string> remarks_on(const Side& a, const Side& b, const Comparison& comparison) {
  std::vector<std::string> remarks;
  const Alignment& names = comparison.names;
  if (names.by_shape > 0) {
    remarks.push_back(
        fmt::format("{} parameters have other names: aligned by shape and order", names.by_shape));
  }
  for (const auto& [side, list] : {std::pair(&a, &names.only_a), std::pair(&b, &names.only_b)}) {
    if (!list->empty()) {
      remarks.push_back(fmt::format(
          "only {} has {}{}", side->label, list->front(),
          list->size() == 1 ? "" : fmt::format(" and {} more parameters", list->size() - 1)));
    }
  }
  if (a.steps.size() != b.steps.size()) {
    remarks.push_back(fmt::format("A has {} steps and B {}: the first {} are compared",
                                  a.steps.size(), b.steps.size(), comparison.steps));
  }
  for (const Side* side : {&a, &b}) {
    std::set<std::string> random;
    for (const ModelModule& module : side->modules) {
      if (module.is_random) {
        random.insert(module.type);
      }
    }
    if (!random.empty() && side->random != "off") {
      remarks.push_back(fmt::format("{} has random modules: {} (--random {})", side->label,
                                    fmt::join(random, ", "),
                                    side->random.empty() ? "keep" : side->random));
    }
    const auto repeats = [&](const Step& step) {
      return !step.data.empty() && std::ranges::all_of(step.data, [&](const auto& each) {
        const auto& of_rank = each.second.of_rank;
        return of_rank.size() > 1 && std::ranges::all_of(of_rank, [&](const auto& rank) {
                 return rank.second == of_rank.begin()->second;
               });
      });
    };
    if (!side->steps.empty() && std::ranges::all_of(side->steps, repeats)) {
      remarks.push_back("all ranks of " + side->label + " read the same data");
    }
  }
  return remarks;
}

}  // namespace

Comparison compare_sides(const Side& a, const Side& b) {
  Comparison result;
  result.names = align(a, b);
  result.measured = measure(a, b, result.names);
  result.steps = static_cast<int>(result.measured.size());
  result.settings = different_settings(a, b);
  result.remarks = remarks_on(a, b, result);
  Checker(a, b, result).check();
  if (result.first) {
    result.causes = causes_of(a, b, result);
  }
  return result;
}

}  // namespace acc::launcher::commands::compare
