// SPDX-License-Identifier: Apache-2.0
// Which names belong together, and how far the tensors of both sides are apart.
#include "commands/compare/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <set>

namespace acc::launcher::commands::compare {
namespace {

std::string without_last_word(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::string last_word(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

/// The parameters of a side that the other one does not have by name. Tied ones count once.
std::vector<const ModelParameter*> unmatched(const Side& side, const Side& other) {
  std::vector<const ModelParameter*> list;
  for (const ModelParameter& each : side.parameters) {
    if (each.same_as.empty() && other.parameter(each.name) == nullptr) {
      list.push_back(&each);
    }
  }
  return list;
}

/// Aligns a parameter, and its modules as far as their last words are the same.
void add_pair(Alignment& names, std::string a, std::string b) {
  names.of_a.emplace(a, b);
  do {
    a = without_last_word(a);
    b = without_last_word(b);
    names.of_a.emplace(a, b);
  } while (!a.empty() && !b.empty() && last_word(a) == last_word(b));
}

/// The tensor's sketch and squares. Outputs that are not per sample, such as a mean loss, have the
/// same size in each forward: they are averaged if the sides differ in the number of forwards.
struct Comparable {
  Sketch sketch;
  double norm;
};

Comparable comparable(const Whole& whole, bool averages) {
  Comparable result{whole.sketch, whole.norm()};
  if (averages && whole.lines > 1) {
    for (double& each : result.sketch) {
      each /= whole.lines;
    }
    result.norm /= std::sqrt(whole.lines);
  }
  return result;
}

Measured measured_pair(const Whole& a, const Whole& b, Phase phase) {
  const bool is_output = phase == Phase::forward || phase == Phase::backward;
  const bool per_sample = a.count == b.count;
  const bool averages = phase == Phase::forward && !per_sample && a.lines != b.lines;
  const Comparable of_a = comparable(a, averages);
  const Comparable of_b = comparable(b, averages);
  Measured measured{a.name, &a, &b, of_a.norm, of_b.norm};
  measured.sketch_a = of_a.sketch;
  measured.sketch_b = of_b.sketch;
  measured.norms_add_up = !is_output || per_sample;
  set_distance(measured);
  return measured;
}

std::vector<Measured> measured_phase(const Step& a, const Step& b, const Alignment& names,
                                     Phase phase) {
  std::vector<Measured> list;
  for (const Whole& each : a.of(phase).list()) {
    const Whole* other = b.of(phase).find(names.in_b(each.name));
    const bool same_size =
        other != nullptr &&
        (each.count == other->count || each.count * other->lines == other->count * each.lines);
    if (same_size && each.is_complete && other->is_complete) {
      list.push_back(measured_pair(each, *other, phase));
    }
  }
  return list;
}

/// Buffers have a line only if they have changed: the last values, by each side's names.
struct LastBuffers {
  std::map<std::string, const Whole*> a;
  std::map<std::string, const Whole*> b;
};

std::vector<Measured> measured_buffers(const Step& a, const Step& b, const Alignment& names,
                                       LastBuffers& last) {
  for (const Whole& each : a.of(Phase::buffer).list()) {
    last.a[each.name] = &each;
  }
  for (const Whole& each : b.of(Phase::buffer).list()) {
    last.b[each.name] = &each;
  }
  std::vector<Measured> list;
  for (const auto& [name, of_a] : last.a) {
    const auto of_b = last.b.find(names.in_b(name));
    if (of_b != last.b.end() && of_a->count == of_b->second->count) {
      list.push_back(measured_pair(*of_a, *of_b->second, Phase::buffer));
    }
  }
  return list;
}

/// The parameters' last values, by A's names.
using LastWeights = std::map<std::string, std::pair<Sketch, Sketch>>;

std::vector<Measured> measured_updates(const MeasuredStep& step, LastWeights& last) {
  std::vector<Measured> updates;
  for (const Measured& now : step.of(Phase::updated)) {
    if (const auto before = last.find(now.name); before != last.end()) {
      Measured update = now;
      for (std::size_t i = 0; i < update.sketch_a.size(); ++i) {
        update.sketch_a[i] -= before->second.first[i];
        update.sketch_b[i] -= before->second.second[i];
      }
      update.norm_a = distance(update.sketch_a, {});
      update.norm_b = distance(update.sketch_b, {});
      update.norms_add_up = false;
      set_distance(update);
      updates.push_back(update);
    }
    last.insert_or_assign(now.name, std::pair(now.sketch_a, now.sketch_b));
  }
  return updates;
}

}  // namespace

std::string Alignment::in_b(const std::string& name) const {
  const auto bracket = name.ends_with(']') ? name.rfind('[') : std::string::npos;
  const std::string plain = name.substr(0, bracket);
  const std::string rest = bracket == std::string::npos ? "" : name.substr(bracket);
  for (std::string prefix = plain;;) {
    if (const auto found = of_a.find(prefix); found != of_a.end()) {
      const std::string end = plain.substr(prefix.size());
      const bool has_dot = found->second.empty() && !end.empty() && !prefix.empty();
      return fmt::format("{}{}{}", found->second, has_dot ? end.substr(1) : end, rest);
    }
    if (prefix.empty() || of_a.empty()) {
      return name;
    }
    prefix = without_last_word(prefix);
    if (prefix.empty()) {
      return name;
    }
  }
}

std::string Alignment::in_a(const std::string& name) const {
  const auto found =
      std::ranges::find_if(of_a, [&](const auto& each) { return each.second == name; });
  return found == of_a.end() ? name : found->first;
}

Alignment align(const Side& a, const Side& b) {
  Alignment names;
  std::map<std::vector<std::int64_t>, std::deque<const ModelParameter*>> of_shape;
  for (const ModelParameter* each : unmatched(b, a)) {
    of_shape[each->shape].push_back(each);
  }
  for (const ModelParameter* each : unmatched(a, b)) {
    auto& candidates = of_shape[each->shape];
    if (candidates.empty()) {
      names.only_a.push_back(each->name);
      continue;
    }
    add_pair(names, each->name, candidates.front()->name);
    candidates.pop_front();
    ++names.by_shape;
  }
  for (const auto& [shape, rest] : of_shape) {
    for (const ModelParameter* each : rest) {
      names.only_b.push_back(each->name);
    }
  }
  return names;
}

std::vector<MeasuredStep> measure(const Side& a, const Side& b, const Alignment& names) {
  std::vector<MeasuredStep> steps(std::min(a.steps.size(), b.steps.size()));
  LastWeights last;
  LastBuffers last_buffers;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (std::size_t phase = 0; phase < kPhases; ++phase) {
      steps[i].phases[phase] =
          measured_phase(a.steps[i], b.steps[i], names, static_cast<Phase>(phase));
    }
    steps[i].phases[static_cast<std::size_t>(Phase::buffer)] =
        measured_buffers(a.steps[i], b.steps[i], names, last_buffers);
    for (const Measured& each : steps[i].of(Phase::weights)) {
      last.insert_or_assign(each.name, std::pair(each.sketch_a, each.sketch_b));
    }
    steps[i].updates = measured_updates(steps[i], last);
  }
  return steps;
}

void set_distance(Measured& measured) {
  const bool finite_a = measured.is_finite_a();
  const bool finite_b = measured.is_finite_b();
  if (!finite_a || !finite_b) {  // both: the trainings diverge alike
    measured.apart = finite_a == finite_b ? 0.0 : std::numeric_limits<double>::infinity();
    measured.relative = measured.apart;
    return;
  }
  measured.apart = distance(measured.sketch_a, measured.sketch_b);
  const double scale = std::max(measured.norm_a, measured.norm_b);
  const double of_norms = measured.norms_add_up ? std::abs(measured.norm_a - measured.norm_b) : 0.0;
  measured.relative = scale == 0.0 ? 0.0 : std::max(measured.apart, of_norms) / scale;
}

std::optional<double> common_factor(const std::vector<Measured>& tensors) {
  double dot = 0.0;
  double squares = 0.0;
  double largest = 0.0;
  for (const Measured& each : tensors) {
    largest = std::max({largest, each.norm_a, each.norm_b});
    for (std::size_t i = 0; i < each.sketch_a.size(); ++i) {
      dot += each.sketch_a[i] * each.sketch_b[i];
      squares += each.sketch_b[i] * each.sketch_b[i];
    }
  }
  const double factor = dot / squares;
  if (!std::isfinite(factor) || factor <= 0.0) {
    return std::nullopt;
  }
  double apart = 0.0;
  for (const Measured& each : tensors) {
    for (std::size_t i = 0; i < each.sketch_a.size(); ++i) {
      const double rest = each.sketch_a[i] - factor * each.sketch_b[i];
      apart += rest * rest;
    }
  }
  // A few percent: after the first micro-step of a scaled loss, 16-bit roundings remain.
  return apart <= 4e-4 * factor * factor * squares ? std::optional(factor) : std::nullopt;
}

std::optional<double> gradient_factor(const Step& a, const Step& b, const MeasuredStep& step) {
  const auto factor = common_factor(step.of(Phase::gradient));
  const bool both_know = a.clip && b.clip && a.clip->norm && b.clip->norm && *b.clip->norm > 0.0;
  return factor && both_know ? std::optional(*a.clip->norm / *b.clip->norm) : factor;
}

std::string module_of(const Side& side, const std::string& name) {
  const std::string plain = name.substr(0, name.ends_with(']') ? name.rfind('[') : name.size());
  return side.module(plain) != nullptr ? plain : without_last_word(plain);
}

}  // namespace acc::launcher::commands::compare
