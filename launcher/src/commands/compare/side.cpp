// SPDX-License-Identifier: Apache-2.0
#include "commands/compare/side.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace acc::launcher::commands::compare {
namespace {

/// A part of a parameter, and the first rank that wrote it.
struct WrittenPart {
  const TensorLine* line;
  int rank;
};

/// By name, then by place: begin and number of elements.
using Parts = std::map<std::string, std::map<std::pair<double, double>, WrittenPart>>;

bool is_of_parameters(Phase phase) {
  return phase != Phase::forward && phase != Phase::backward;
}

void add(Value& sum, const Value& part, double factor) {
  sum.dtype = sum.dtype.empty() ? part.dtype : sum.dtype;
  sum.count += part.count;
  sum.squares += part.squares * factor * factor;
  for (std::size_t i = 0; i < sum.sketch.size(); ++i) {
    sum.sketch[i] += part.sketch[i] * factor;
  }
}

/// Remembers that two ranks' copies of a part differ.
void compare_copies(Whole& whole, const TensorLine& a, const TensorLine& b, int rank) {
  const double norm = std::sqrt(std::max(a.squares, b.squares));
  const double apart = distance(a.sketch, b.sketch);
  const double spread = apart == 0.0                  ? 0.0
                        : std::isfinite(apart / norm) ? apart / norm
                                                      : std::numeric_limits<double>::infinity();
  if (spread > whole.spread) {
    whole.spread = spread;
    whole.other_rank = rank;
  }
}

class Combiner {
 public:
  Combiner(std::span<const RankRecording> ranks, Side& side) : ranks_(ranks), side_(side) {
    std::size_t count = std::numeric_limits<std::size_t>::max();
    for (const RankRecording& rank : ranks_) {
      std::size_t completed = 0;
      for (const StepLine& step : rank.steps) {
        completed = std::max(completed, static_cast<std::size_t>(step.step) + 1);
      }
      count = std::min({count, completed, rank.steps.size()});
    }
    side_.steps.resize(count);
  }

  void combine() {
    for (const RankRecording& rank : ranks_) {
      add_losses(rank);
      add_data(rank);
      add_clips(rank);
      add_groups(rank);
      for (const StepLine& line : rank.steps) {
        if (Step* step = find(line.step)) {
          step->skipped = step->skipped || line.skipped;
          step->changed = std::max(step->changed, line.changed);
        }
      }
    }
    for (const RankRecording& rank : ranks_) {
      add_tensors(rank);
    }
    finish_parameters();
  }

 private:
  Step* find(int number) {
    const auto at = static_cast<std::size_t>(number);
    return at < side_.steps.size() ? &side_.steps[at] : nullptr;
  }

  void add_losses(const RankRecording& rank) {
    for (const LossLine& line : rank.losses) {
      if (Step* step = find(line.step)) {
        const double scale = line.scale == 0.0 ? 1.0 : line.scale;
        step->loss = step->loss.value_or(0.0) + line.value / scale / side_.world_size;
        step->scale = scale;
        step->micro_steps = std::max(step->micro_steps, line.micro_step + 1);
      }
    }
  }

  void add_data(const RankRecording& rank) {
    for (const DataLine& line : rank.data) {
      if (Step* step = find(line.step)) {
        Data& data = step->data[line.name];
        const std::int64_t rows = line.shape.empty() ? 1 : line.shape.front();
        step->is_training = step->is_training && line.is_training;
        data.dtype = line.dtype;
        data.any_order += line.exact;
        data.rows += rows;
        data.rows_of.insert(rows);
        data.forwards.insert(line.exact);
        data.of_rank[rank.rank] += line.exact;
        if (line.value) {
          data.value = data.value ? data.value : Value{};
          add(*data.value, *line.value, 1.0);
        }
      }
    }
  }

  void add_clips(const RankRecording& rank) {
    for (const ClipLine& line : rank.clips) {
      if (Step* step = find(line.step)) {
        if (!step->clip) {
          step->clip = Clip{line.function, line.limit, line.norm};
        } else if (step->clip->norm && line.norm) {
          const double apart = std::abs(*step->clip->norm - *line.norm);
          step->clip->ranks_agree &= !(apart > 1e-3 * std::abs(*line.norm));
        }
      }
    }
  }

  void add_groups(const RankRecording& rank) {
    for (const GroupLine& line : rank.groups) {
      if (Step* step = find(line.step)) {
        step->optimizer = line.optimizer;
        std::map<std::string, int> uses;
        for (const std::string& name : line.names) {
          step->settings[name] = line.settings;
          ++uses[name];
        }
        for (const auto& [name, count] : uses) {
          step->uses[name] = std::max(step->uses[name], count);
        }
      }
    }
  }

  void add_tensors(const RankRecording& rank) {
    for (const TensorLine& line : rank.tensors) {
      Step* step = find(line.step);
      if (step == nullptr) {
        continue;
      }
      Whole& whole = step->of(line.phase).at(line.name);
      if (!is_of_parameters(line.phase)) {
        const bool is_gradient = line.phase == Phase::backward;
        add(whole, line, is_gradient ? 1.0 / (side_.world_size * step->scale) : 1.0);
        ++whole.lines;
        continue;
      }
      if (line.phase == Phase::gradient && line.begin) {
        step->squares_of_parts[rank.rank] += line.squares;
      }
      auto& parts = parts_[{line.step, line.phase}][line.name];
      const WrittenPart part{&line, rank.rank};
      const auto [copy, is_new] = parts.try_emplace({line.begin.value_or(0.0), line.count}, part);
      if (!is_new && copy->second.rank == rank.rank) {
        copy->second = part;  // written again: the last one counts
      } else if (!is_new) {
        compare_copies(whole, *copy->second.line, line, rank.rank);
      }
    }
  }

  void finish_parameters() {
    for (const auto& [place, tensors] : parts_) {
      Wholes& wholes = side_.steps[static_cast<std::size_t>(place.first)].of(place.second);
      for (const auto& [name, parts] : tensors) {
        Whole& whole = wholes.at(name);
        double expected = 0.0;
        for (const auto& [where, part] : parts) {
          add(whole, *part.line, 1.0);
          expected = std::max(expected, part.line->whole);
        }
        whole.lines = 1;
        whole.is_complete = whole.count == expected;
      }
    }
  }

  std::span<const RankRecording> ranks_;
  Side& side_;
  std::map<std::pair<int, Phase>, Parts> parts_;
};

}  // namespace

bool is_finite(double norm, const Sketch& sketch) {
  return std::isfinite(norm) &&
         std::ranges::all_of(sketch, [](double each) { return std::isfinite(each); });
}

const Whole* Wholes::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &list_[found->second];
}

Whole& Wholes::at(const std::string& name) {
  const auto [found, is_new] = index_.try_emplace(name, list_.size());
  if (is_new) {
    list_.emplace_back().name = name;
  }
  return list_[found->second];
}

double Step::gradient_norm() const {
  double squares = 0.0;
  for (const Whole& each : of(Phase::gradient).list()) {
    squares += each.squares;
  }
  return std::sqrt(squares);
}

const ModelParameter* Side::parameter(const std::string& name) const {
  const auto found = parameter_index.find(name);
  return found == parameter_index.end() ? nullptr : &parameters[found->second];
}

const ModelModule* Side::module(const std::string& name) const {
  const auto found = module_index.find(name);
  return found == module_index.end() ? nullptr : &modules[found->second];
}

double distance(const Sketch& a, const Sketch& b) {
  double squares = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::sqrt(squares / static_cast<double>(a.size()));
}

Side combined(std::span<const RankRecording> ranks, std::string label, std::string title) {
  Side side;
  side.label = std::move(label);
  side.title = std::move(title);
  const RankRecording& first = ranks.front();
  side.world_size = first.world_size;
  side.engine = first.engine;
  side.random = first.random;
  side.framework = first.framework;
  for (const ModelLine& model : first.models) {
    side.wrapper += (side.wrapper.empty() ? "" : ", ") + model.wrapper;
    side.parameters.insert(side.parameters.end(), model.parameters.begin(), model.parameters.end());
    side.modules.insert(side.modules.end(), model.modules.begin(), model.modules.end());
    side.buffers.insert(side.buffers.end(), model.buffers.begin(), model.buffers.end());
  }
  for (std::size_t i = 0; i < side.parameters.size(); ++i) {
    side.parameter_index.emplace(side.parameters[i].name, i);
  }
  for (std::size_t i = 0; i < side.modules.size(); ++i) {
    side.module_index.emplace(side.modules[i].name, i);
  }
  for (const RankRecording& rank : ranks) {
    side.has_ended = side.has_ended && rank.has_ended;
  }
  Combiner(ranks, side).combine();
  return side;
}

}  // namespace acc::launcher::commands::compare
