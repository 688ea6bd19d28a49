// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/lr_schedule.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc {
namespace {

void check_count(const char* name, std::int64_t count, std::int64_t least) {
  if (count < least) {
    throw Error(Errc::invalid_argument, std::string("learning-rate schedule: ") + name +
                                            " must be at least " + std::to_string(least) +
                                            ", found " + std::to_string(count));
  }
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
}

/// A schedule that multiplies `base` by a factor: the warmup, then `after(step)`.
template <typename After>
LrSchedule with_warmup(std::int64_t warmup_steps, const After& after) {
  check_count("warmup steps", warmup_steps, 0);
  return [=](std::int64_t step, double base) {
    return base * (step < warmup_steps ? ratio(step, warmup_steps) : after(step));
  };
}

/// DeepSpeed's warmup from 0 to 1 within `steps` steps. index: below `steps`.
double rise(WarmupType type, std::int64_t index, std::int64_t steps) {
  if (type == WarmupType::linear) {
    return static_cast<double>(index) / static_cast<double>(steps);
  }
  return 1.0 / std::log(static_cast<double>(steps)) * std::log(static_cast<double>(index + 1));
}

/// DeepSpeed raises the number of warmup steps to 2: it divides by its logarithm, which is 0 for 1.
std::int64_t checked_warmup(std::int64_t steps) {
  check_count("warmup_num_steps", steps, 1);
  return std::max<std::int64_t>(2, steps);
}

/// A schedule between `min_lr` (factor 0) and `max_lr` (factor 1). after(index): the factor after
/// the warmup. DeepSpeed's engine advances the schedule after each optimizer step, so the
/// schedule's index is step - 1; before the first step it already has the rate of index 0.
template <typename After>
LrSchedule deepspeed_warmup(const WarmupLr& settings, std::int64_t warmup, const After& after) {
  return [=](std::int64_t step, double base) {
    const std::int64_t index = std::max<std::int64_t>(0, step - 1);
    const double gamma = index < warmup ? rise(settings.type, index, warmup) : after(index);
    return settings.min_lr + (settings.max_lr.value_or(base) - settings.min_lr) * gamma;
  };
}

}  // namespace

LrSchedule constant_with_warmup(std::int64_t warmup_steps) {
  return with_warmup(warmup_steps, [](std::int64_t) { return 1.0; });
}

LrSchedule linear_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps) {
  check_count("total steps", total_steps, 0);
  return with_warmup(warmup_steps, [=](std::int64_t step) {
    return std::max(0.0, ratio(total_steps - step, total_steps - warmup_steps));
  });
}

LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps, double cycles) {
  check_count("total steps", total_steps, 0);
  return with_warmup(warmup_steps, [=](std::int64_t step) {
    const double progress = ratio(step - warmup_steps, total_steps - warmup_steps);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress)));
  });
}

LrSchedule warmup_lr(const WarmupLr& settings) {
  return deepspeed_warmup(settings, checked_warmup(settings.warmup_steps),
                          [](std::int64_t) { return 1.0; });
}

LrSchedule warmup_decay_lr(const WarmupLr& settings, std::int64_t total_steps) {
  constexpr double kMaxLr = 0.001;
  check_count("total_num_steps", total_steps, 1);
  WarmupLr known = settings;
  known.max_lr = settings.max_lr.value_or(kMaxLr);
  const std::int64_t warmup = checked_warmup(settings.warmup_steps);
  return deepspeed_warmup(known, warmup, [=](std::int64_t index) {
    return std::max(0.0, ratio(total_steps - index, total_steps - warmup));
  });
}

LrSchedule warmup_cosine_lr(const WarmupCosineLr& settings) {
  check_count("total_num_steps", settings.total_steps, 1);
  const std::int64_t warmup = checked_warmup(settings.warmup_steps);
  return [=](std::int64_t step, double base) {
    if (step == 0) {
      return 0.0;  // DeepSpeed's schedule has set no ratio before its first call
    }
    const std::int64_t index = step - 1;
    if (index < warmup) {
      const double least = settings.warmup_min_ratio;
      return base * (least + rise(settings.type, index, warmup) * (1.0 - least));
    }
    const double progress = std::min(1.0, ratio(index - warmup + 1, settings.total_steps - warmup));
    const double wave = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
    const double least = settings.cos_min_ratio;
    return base * std::max(0.0, least + (1.0 - least) * wave);
  };
}

// --- schedules by name ---

namespace {

/// The values of a schedule, by name.
class Values {
 public:
  /// defaults: NaN for a value that must be given.
  Values(const NamedSchedule& schedule,
         std::initializer_list<std::pair<const char*, double>> defaults)
      : name_(schedule.name) {
    for (const auto& [key, value] : defaults) {
      values_.emplace(key, value);
    }
    for (const auto& [key, value] : schedule.values) {
      const auto found = values_.find(key);
      if (found == values_.end()) {
        std::vector<std::string> known;
        for (const auto& each : values_) {
          known.push_back(each.first);
        }
        fail(key, fmt::format("is unknown; there are {}", fmt::join(known, ", ")));
      }
      found->second = value;
    }
    for (const auto& [key, value] : values_) {
      if (!std::isfinite(value)) {
        fail(key, schedule.values.contains(key) ? "must be finite" : "must be given");
      }
    }
  }

  double operator[](const char* key) const { return values_.at(key); }

  /// A value of at least `least`.
  double number(const char* key, double least) const {
    const double value = values_.at(key);
    if (value < least) {
      fail(key, fmt::format("must be at least {}, found {}", least, value));
    }
    return value;
  }

  /// A whole number of at least `least`.
  std::int64_t count(const char* key, std::int64_t least = 0) const {
    const double value = number(key, static_cast<double>(least));
    if (value != std::floor(value) || value > 1e15) {
      fail(key, fmt::format("must be a whole number, found {}", value));
    }
    return static_cast<std::int64_t>(value);
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw Error(Errc::invalid_argument,
                fmt::format("learning-rate schedule {}: {} {}", name_, key, what));
  }

 private:
  const std::string& name_;
  std::map<std::string, double> values_;
};

constexpr double kGiven = std::numeric_limits<double>::quiet_NaN();  // without a default

/// get_cosine_with_hard_restarts_schedule_with_warmup.
StepSchedule cosine_with_restarts(const NamedSchedule& schedule) {
  const Values v(schedule, {{"warmup_steps", 0.0}, {"total_steps", kGiven}, {"cycles", 1.0}});
  const std::int64_t warmup = v.count("warmup_steps");
  const std::int64_t total = v.count("total_steps");
  return {with_warmup(warmup, [=, cycles = v["cycles"]](std::int64_t step) {
    const double progress = ratio(step - warmup, total - warmup);
    const double phase = std::fmod(cycles * progress, 1.0);
    return progress >= 1.0 ? 0.0 : std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * phase)));
  })};
}

/// get_polynomial_decay_schedule_with_warmup.
StepSchedule polynomial(const NamedSchedule& schedule) {
  const Values v(
      schedule, {{"warmup_steps", 0.0}, {"total_steps", kGiven}, {"lr_end", 1e-7}, {"power", 1.0}});
  const std::int64_t warmup = v.count("warmup_steps");
  const std::int64_t total = v.count("total_steps");
  return {[=, last = v.number("lr_end", 0.0), power = v["power"]](std::int64_t step, double base) {
    if (step < warmup) {
      return base * ratio(step, warmup);
    }
    if (step > total || total == warmup) {
      return last;
    }
    const double left =
        1.0 - static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return (base - last) * std::pow(left, power) + last;
  }};
}

/// get_inverse_sqrt_schedule; timescale 0: that of the warmup, or 10,000 without one.
StepSchedule inverse_sqrt(const NamedSchedule& schedule) {
  const Values v(schedule, {{"warmup_steps", 0.0}, {"timescale", 0.0}});
  const std::int64_t warmup = v.count("warmup_steps");
  const std::int64_t given = v.count("timescale");
  const std::int64_t scale = given > 0 ? given : warmup > 0 ? warmup : 10'000;
  return {with_warmup(warmup, [=](std::int64_t step) {
    return 1.0 / std::sqrt(ratio(step + scale - warmup, scale));
  })};
}

enum class Curve { linear = 0, cosine = 1, one_minus_sqrt = 2 };

Curve curve_of(const Values& values, const char* key) {
  const std::int64_t number = values.count(key);
  if (number > 2) {
    values.fail(key, "must be 0 (linear), 1 (cosine) or 2 (1-sqrt)");
  }
  return static_cast<Curve>(number);
}

/// get_wsd_schedule.
StepSchedule warmup_stable_decay(const NamedSchedule& schedule) {
  const Values v(schedule, {{"warmup_steps", kGiven},
                            {"stable_steps", kGiven},
                            {"decay_steps", kGiven},
                            {"warmup_type", 0.0},
                            {"decay_type", 1.0},
                            {"min_lr_ratio", 0.0},
                            {"cycles", 0.5}});
  const std::int64_t warmup = v.count("warmup_steps");
  const std::int64_t stable = warmup + v.count("stable_steps");
  const std::int64_t end = stable + v.count("decay_steps");
  const Curve rises = curve_of(v, "warmup_type");
  const Curve falls = curve_of(v, "decay_type");
  const double least = v.number("min_lr_ratio", 0.0);
  return {[=, cycles = v["cycles"]](std::int64_t step, double base) {
    const auto above = [least](double factor) {
      return std::max(0.0, factor * (1.0 - least) + least);
    };
    if (step < warmup) {
      const double progress = ratio(step, warmup);
      return base * above(rises == Curve::linear ? progress
                          : rises == Curve::cosine
                              ? 0.5 * (1.0 - std::cos(std::numbers::pi * progress))
                              : 1.0 - std::sqrt(1.0 - progress));
    }
    if (step < stable) {
      return base;
    }
    if (step >= end) {
      return base * least;
    }
    const double progress = ratio(step - stable, end - stable);
    return base * above(falls == Curve::linear ? 1.0 - progress
                        : falls == Curve::cosine
                            ? 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress))
                            : 1.0 - std::sqrt(progress));
  }};
}

/// DeepSpeed's LRRangeTest: the rate rises from its minimum, without an end.
StepSchedule lr_range_test(const NamedSchedule& schedule) {
  const Values v(schedule, {{"lr_range_test_min_lr", 1e-3},
                            {"lr_range_test_step_size", 2000.0},
                            {"lr_range_test_step_rate", 1.0},
                            {"lr_range_test_staircase", 0.0}});
  const double least = v.number("lr_range_test_min_lr", 0.0);
  const auto size = static_cast<double>(v.count("lr_range_test_step_size", 1));
  const double rate = v["lr_range_test_step_rate"];
  const bool stairs = v["lr_range_test_staircase"] != 0.0;
  return {[=](std::int64_t step, double) {
    const double intervals = static_cast<double>(step) / size;
    return least * (1.0 + rate * (stairs ? std::floor(intervals) : intervals));
  }};
}

/// One cycle of DeepSpeed's OneCycle (arXiv 1803.09820), then a decay.
struct Cycle {
  double first, second;  ///< steps of its halves
  double first_stairs, second_stairs;

  [[nodiscard]] double total() const { return first + second; }

  /// OneCycle._get_scale_factor: 0 at the ends of the cycle, 1 between its halves. step: the
  /// schedule's last_batch_iteration + 1.
  [[nodiscard]] double scale(double step) const {
    const double turn = first / total();
    const double x = 1.0 + step / total() - std::floor(1.0 + step / total());
    const bool rises = x <= turn;
    const double stairs = rises ? first_stairs : second_stairs;
    if (stairs == 0.0) {
      return rises ? x / turn : (x - 1.0) / (turn - 1.0);
    }
    const double at = std::fmod(step, total());
    const double position = at <= first ? at * stairs / first : (total() - at) * stairs / second;
    return std::floor(position) / stairs;
  }
};

/// The schedule's last_batch_iteration is -1 before the first step, and step - 1 later. It has set
/// only the smallest rate and momentum before its first call.
StepSchedule one_cycle(const NamedSchedule& schedule) {
  const Values v(schedule, {{"cycle_min_lr", kGiven},
                            {"cycle_max_lr", kGiven},
                            {"decay_lr_rate", 0.0},
                            {"cycle_first_step_size", 2000.0},
                            {"cycle_second_step_size", -1.0},
                            {"cycle_first_stair_count", 0.0},
                            {"cycle_second_stair_count", -1.0},
                            {"decay_step_size", 0.0},
                            {"cycle_momentum", 1.0},
                            {"cycle_min_mom", 0.8},
                            {"cycle_max_mom", 0.9},
                            {"decay_mom_rate", 0.0}});
  const auto first = static_cast<double>(v.count("cycle_first_step_size", 1));
  const auto stairs = static_cast<double>(v.count("cycle_first_stair_count"));
  const auto or_first = [&v](const char* key, double of_first) {  // negative: as the first half
    return v[key] == -1.0 ? of_first : static_cast<double>(v.count(key));
  };
  const Cycle cycle{first, or_first("cycle_second_step_size", first), stairs,
                    or_first("cycle_second_stair_count", stairs)};
  const auto interval = static_cast<double>(v.count("decay_step_size"));
  const auto decay = [cycle, interval](double step, double rate) {  // 1: no decay
    return interval == 0.0 ? 1.0 : 1.0 + rate * ((step - cycle.total()) / interval);
  };
  const auto is_in = [cycle](double step) { return step - 1.0 < cycle.total(); };
  const double low = v.number("cycle_min_lr", 0.0);
  const double high = v.number("cycle_max_lr", 0.0);
  StepSchedule result{[=, rate = v["decay_lr_rate"]](std::int64_t number, double) {
    const auto step = static_cast<double>(number);
    return is_in(step) ? low + (high - low) * cycle.scale(step) : low / decay(step, rate);
  }};
  if (v["cycle_momentum"] != 0.0) {
    const double least = v.number("cycle_min_mom", 0.0);
    const double most = v.number("cycle_max_mom", 0.0);
    if (std::max(least, most) >= 1.0) {
      v.fail("cycle_max_mom", "and cycle_min_mom must be below 1");
    }
    result.betas = [=, rate = v["decay_mom_rate"]](std::int64_t number) {
      const auto step = static_cast<double>(number);
      const double beta1 = number == 0   ? least
                           : is_in(step) ? most - (most - least) * cycle.scale(step)
                                         : most * decay(step, rate);
      return std::array{beta1, 0.99};  // DeepSpeed's second beta
    };
  }
  return result;
}

StepSchedule of_steps(const NamedSchedule& schedule) {
  const Values v(schedule, {{"warmup_steps", 0.0}, {"total_steps", kGiven}});
  return {linear_with_warmup(v.count("warmup_steps"), v.count("total_steps"))};
}

StepSchedule of_cosine(const NamedSchedule& schedule) {
  const Values v(schedule, {{"warmup_steps", 0.0}, {"total_steps", kGiven}, {"cycles", 0.5}});
  return {cosine_with_warmup(v.count("warmup_steps"), v.count("total_steps"), v["cycles"])};
}

StepSchedule of_constant(const NamedSchedule& schedule) {
  const Values v(schedule, {{"warmup_steps", 0.0}});
  return {constant_with_warmup(v.count("warmup_steps"))};
}

constexpr std::pair<std::string_view, StepSchedule (*)(const NamedSchedule&)> kSchedules[] = {
    {"constant", of_constant},
    {"linear", of_steps},
    {"cosine", of_cosine},
    {"cosine_with_restarts", cosine_with_restarts},
    {"polynomial", polynomial},
    {"inverse_sqrt", inverse_sqrt},
    {"warmup_stable_decay", warmup_stable_decay},
    {"OneCycle", one_cycle},
    {"LRRangeTest", lr_range_test},
};

}  // namespace

StepSchedule schedule_of(const NamedSchedule& schedule) {
  std::vector<std::string_view> names;
  for (const auto& [name, make] : kSchedules) {
    if (name == schedule.name) {
      return make(schedule);
    }
    names.push_back(name);
  }
  throw Error(Errc::invalid_argument, fmt::format("no schedule is named '{}'; there are {}",
                                                  schedule.name, fmt::join(names, ", ")));
}

}  // namespace acc
