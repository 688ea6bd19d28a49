// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

// Recordings of trainings as the ranks wrote them (docs/formats/recording.md).
namespace acc::launcher::commands::compare {

/// Groups of tensors that are compared, in the order of computing in a step.
enum class Phase { weights, buffer, forward, backward, gradient, updated };
inline constexpr std::size_t kPhases = 6;

using Sketch = std::array<double, 4>;

/// A tensor by its size and its sketch.
struct Value {
  std::string dtype;
  double count = 0.0;
  double squares = 0.0;
  Sketch sketch{};
};

struct TensorLine : Value {
  int step = 0;
  Phase phase = Phase::forward;
  std::string name;
  std::optional<double> begin;  ///< of a part: index of its first element in the whole tensor
  double whole = 0.0;           ///< of a part: number of elements of the whole tensor
};

struct DataLine {
  int step = 0;
  int micro_step = 0;
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t exact = 0;     ///< sum of all bytes; the order of rows does not count
  std::optional<Value> value;  ///< of floating-point values
  bool is_training = true;     ///< false: the model computes in evaluation mode
};

struct LossLine {
  int step = 0;
  int micro_step = 0;
  double value = 0.0;
  double scale = 1.0;
};

struct ClipLine {
  int step = 0;
  std::string function;
  double limit = 0.0;
  std::optional<double> norm;
};

struct GroupLine {
  int step = 0;
  int number = 0;
  std::string optimizer;
  std::map<std::string, std::string> settings;  ///< as JSON
  std::vector<std::string> names;
};

struct StepLine {
  int step = 0;
  bool skipped = false;
  int changed = 0;  ///< parameters that have changed
};

struct ModelParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;
  bool trained = true;
  std::string same_as;
};

struct ModelModule {
  std::string name;
  std::string type;
  bool is_random = false;  ///< it used random numbers, as dropout does
  double rate = 0.0;       ///< 0: not known
};

struct ModelLine {
  std::string name;
  std::string wrapper;
  std::vector<ModelParameter> parameters;
  std::vector<ModelModule> modules;
  std::vector<std::string> buffers;  ///< names
};

/// The files of one rank.
struct RankRecording {
  int rank = 0;
  int world_size = 1;
  std::string engine;
  std::string random;
  std::map<std::string, std::string> framework;  ///< versions
  std::vector<ModelLine> models;
  std::vector<DataLine> data;
  std::vector<TensorLine> tensors;
  std::vector<LossLine> losses;
  std::vector<ClipLine> clips;
  std::vector<GroupLine> groups;
  std::vector<StepLine> steps;
  bool has_ended = false;  ///< the recorder wrote its last line
};

/// Reads the text of one rank's file. Lines of unknown kinds are skipped, and so is a last line
/// without a newline that is not complete, as a killed rank leaves it. Throws Error(config) with
/// file and line.
RankRecording read_rank(const std::string& file, const std::string& text);

/// Reads all ranks of a folder, by rank. Throws Error(not_found) if it is no folder or has no
/// recording, and Error(config) if a file is damaged or the files are not of one training.
std::vector<RankRecording> read_recording(const std::filesystem::path& folder);

}  // namespace acc::launcher::commands::compare
