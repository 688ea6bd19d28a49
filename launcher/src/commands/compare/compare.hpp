// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/compare/side.hpp"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::commands::compare {

/// Kinds of differences, in the order in which a step is checked.
enum class Kind {
  data,
  weight_type,
  weights,
  buffer,
  forward,
  loss,
  backward,
  ranks_differ,
  gradient_missing,
  gradient,
  clip,
  skipped,
  setting,
  unchanged,
  updated,
};

/// The names of one side by those of the other.
struct Alignment {
  std::map<std::string, std::string> of_a;  ///< names of B by those of A, where they differ
  std::vector<std::string> only_a;          ///< parameters without a counterpart
  std::vector<std::string> only_b;
  int by_shape = 0;  ///< parameters that were aligned by shape and order

  /// Returns B's name of a parameter, module or output of A.
  [[nodiscard]] std::string in_b(const std::string& name) const;
  /// The reverse, for parameters.
  [[nodiscard]] std::string in_a(const std::string& name) const;
};

/// A tensor of both sides. The bound is on `apart / scale`.
struct Measured {
  std::string name;  ///< A's
  const Whole* a = nullptr;
  const Whole* b = nullptr;
  double norm_a = 0.0;
  double norm_b = 0.0;
  double apart = 0.0;     ///< distance
  double relative = 0.0;  ///< to the larger norm
  Sketch sketch_a{};
  Sketch sketch_b{};
  bool norms_add_up = true;  ///< the norms themselves can be compared

  [[nodiscard]] bool is_finite_a() const { return is_finite(norm_a, sketch_a); }
  [[nodiscard]] bool is_finite_b() const { return is_finite(norm_b, sketch_b); }
};

/// Sets `apart` and `relative` by the sketches and the norms.
void set_distance(Measured& measured);

struct MeasuredStep {
  std::array<std::vector<Measured>, kPhases> phases;
  std::vector<Measured> updates;  ///< what the step added to the parameters

  [[nodiscard]] const std::vector<Measured>& of(Phase phase) const {
    return phases[static_cast<std::size_t>(phase)];
  }
};

/// The first place where the sides part.
struct Difference {
  Kind kind = Kind::data;
  int step = 0;
  std::string phase;  ///< in words of the user: data, forward, backward, reduction, …
  std::string unit;   ///< module
  std::string name;   ///< parameter, output, argument or setting
  std::string a;      ///< values of both sides
  std::string b;
  double distance = 0.0;
  double bound = 0.0;  ///< 0: values that have to be the same
};

/// A setting of which the recordings have different values.
struct Setting {
  std::string name;
  std::string a;
  std::string b;
};

struct Cause {
  std::string id;
  std::string text;
  std::string setting;  ///< what to change
};

/// The place of a phase that came nearest to its bound.
struct Nearest {
  std::string phase;
  std::string name;
  int step = 0;
  double distance = 0.0;
  double bound = 0.0;
};

struct Comparison {
  int steps = 0;          ///< that were compared
  std::string precision;  ///< dtype that the bound is derived from
  std::size_t depth = 0;  ///< modules, one after the other
  std::vector<Nearest> nearest;
  std::optional<Difference> first;
  std::vector<Setting> settings;
  std::vector<Cause> causes;
  std::vector<std::string> remarks;
  Alignment names;
  std::vector<MeasuredStep> measured;  ///< of all steps of both sides
};

Alignment align(const Side& a, const Side& b);

/// Returns the distances of what both sides have, for all steps of both.
std::vector<MeasuredStep> measure(const Side& a, const Side& b, const Alignment& names);

/// Compares two recordings. They must live as long as the result, which points into them.
Comparison compare_sides(const Side& a, const Side& b);

/// Returns the known causes that explain a difference, the likeliest first.
std::vector<Cause> causes_of(const Side& a, const Side& b, const Comparison& comparison);

/// If one of two vectors is a multiple of the other: the factor from B to A. For all tensors of a
/// list; nullopt if they have different factors or directions.
std::optional<double> common_factor(const std::vector<Measured>& tensors);

/// The same for the gradients of a step before they were clipped.
std::optional<double> gradient_factor(const Step& a, const Step& b, const MeasuredStep& step);

/// Returns the module of a parameter or output: `layer.0` of `layer.0.weight`.
std::string module_of(const Side& side, const std::string& name);

/// Relative distance of all weights after a step.
double weights_apart(const MeasuredStep& step);

/// One screen for the user.
std::string verdict_text(const Side& a, const Side& b, const Comparison& comparison);
/// The same for programs, as in docs/compare.schema.json.
nlohmann::ordered_json verdict_json(const Side& a, const Side& b, const Comparison& comparison);
/// The page of --report: one HTML file without references to others.
std::string report_page(const Side& a, const Side& b, const Comparison& comparison);

}  // namespace acc::launcher::commands::compare
