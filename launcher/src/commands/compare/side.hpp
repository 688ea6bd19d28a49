// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/compare/recording.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace acc::launcher::commands::compare {

/// A tensor of the whole training: of all ranks and micro-steps.
struct Whole : Value {
  std::string name;
  int lines = 0;            ///< of how many outputs it is the sum; 1 for parameters
  bool is_complete = true;  ///< false: ranks wrote only some parts of it
  double spread = 0.0;      ///< relative distance between the ranks that have a copy, 0 if equal
  int other_rank = 0;       ///< rank whose copy is not that of the first rank

  [[nodiscard]] double norm() const { return std::sqrt(squares); }
};

/// Tensors in the order of computing.
class Wholes {
 public:
  [[nodiscard]] const Whole* find(const std::string& name) const;
  Whole& at(const std::string& name);
  [[nodiscard]] const std::vector<Whole>& list() const { return list_; }

 private:
  std::vector<Whole> list_;
  std::map<std::string, std::size_t> index_;
};

/// An argument of the model in all forwards of a step.
struct Data {
  std::string dtype;
  std::uint64_t any_order = 0;  ///< sum over the forwards; the order of rows does not count
  std::int64_t rows = 0;
  std::set<std::int64_t> rows_of;    ///< rows of one forward
  std::set<std::uint64_t> forwards;  ///< the different sums of the forwards
  /// Sums of each rank, to find ranks that read the same.
  std::map<int, std::uint64_t> of_rank;
  std::optional<Value> value;  ///< of floating-point values
};

struct Clip {
  std::string function;
  double limit = 0.0;
  std::optional<double> norm;  ///< of rank 0
  bool ranks_agree = true;     ///< false: the ranks were told different norms
};

struct Step {
  int micro_steps = 0;
  std::map<std::string, Data> data;
  std::optional<double> loss;  ///< sum over the micro-steps, mean over the ranks
  double scale = 1.0;          ///< by which the loss was multiplied
  std::optional<Clip> clip;
  std::string optimizer;
  std::map<std::string, std::map<std::string, std::string>> settings;  ///< of each parameter
  std::map<std::string, int> uses;         ///< number of times that a parameter is in the groups
  bool is_training = true;                 ///< false: a forward was in evaluation mode
  std::map<int, double> squares_of_parts;  ///< of the gradients of which a rank has a part
  bool skipped = false;
  int changed = 0;
  std::array<Wholes, kPhases> tensors;

  [[nodiscard]] const Wholes& of(Phase phase) const {
    return tensors[static_cast<std::size_t>(phase)];
  }
  [[nodiscard]] Wholes& of(Phase phase) { return tensors[static_cast<std::size_t>(phase)]; }
  /// Norm of all gradients; 0 if none was recorded.
  [[nodiscard]] double gradient_norm() const;
};

/// The recording of one side, over all ranks.
struct Side {
  std::string label;  ///< A or B
  std::string title;  ///< as the user described it
  int world_size = 1;
  std::string engine;
  std::string wrapper;
  std::string random;
  std::map<std::string, std::string> framework;
  std::vector<ModelParameter> parameters;
  std::vector<ModelModule> modules;
  std::vector<std::string> buffers;                    ///< names
  std::vector<Step> steps;                             ///< those that all ranks have completed
  bool has_ended = true;                               ///< false: a rank's recorder did not end
  std::map<std::string, std::size_t> parameter_index;  ///< by name
  std::map<std::string, std::size_t> module_index;

  [[nodiscard]] const ModelParameter* parameter(const std::string& name) const;
  [[nodiscard]] const ModelModule* module(const std::string& name) const;
};

/// True if all numbers are finite.
bool is_finite(double norm, const Sketch& sketch);

/// Distance of two sketches.
double distance(const Sketch& a, const Sketch& b);

/// Puts the ranks' files together: parts of parameters and batches are added up, of copies one is
/// taken.
Side combined(std::span<const RankRecording> ranks, std::string label, std::string title);

}  // namespace acc::launcher::commands::compare
