// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/optimizers.hpp"
#include "acc/runtime/reports.hpp"
#include "optim/sketch.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_plan.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace acc::optim {

/// Writes what an optimizer gets and does in each step, for `acclaunch compare`
/// (docs/formats/recording.md): the lines of this rank, into a file of this optimizer.
class StepRecording {
 public:
  /// Writes the lines about the program and the model. units: names. Throws
  /// Error(config) if the file cannot be written.
  StepRecording(const sharding::Context& context,
                const std::vector<const sharding::ParameterRecord*>& parameters,
                const std::vector<std::string>& units);
  ~StepRecording();
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  struct Group {
    std::string optimizer;
    std::map<std::string, double> settings;
    std::vector<std::string> parameters;
    std::vector<std::string> states;
  };
  /// Before a step. shards: of the trained parameters.
  void begin_step(const std::vector<Group>& groups, std::span<const ParameterShard> shards);
  /// Before the update. factor: by which the update multiplies the gradients.
  void add_gradients(std::span<const ParameterShard> shards, double factor);

  struct Clipping {
    double norm = 0.0;   ///< limit; 0: none
    double value = 0.0;  ///< likewise
    double late = 1.0;   ///< part of the gradients' factor that was not known before the update
  };
  /// After a step. Returns true if it is the last one that is to be recorded.
  bool end_step(std::span<const ParameterShard> shards, const StepInfo& info,
                const Clipping& clipping);

 private:
  using Key = std::pair<std::string, std::int64_t>;  // name and first element
  /// values: memory of the updater.
  [[nodiscard]] Sketch sketch_of(const void* values, DType dtype, std::int64_t numel,
                                 std::int64_t begin);
  void add_weights(const char* phase, std::span<const ParameterShard> shards);
  void add_tensor(const char* phase, const ParameterShard& shard, DType dtype,
                  const Sketch& sketch);
  void add(const nlohmann::ordered_json& line);
  void write_lines();

  const sharding::Context& context_;
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string lines_;  ///< of this step
  std::int64_t steps_ = 0;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::map<Key, Sketch> weights_;
  struct Gradient {
    ParameterShard shard;
    Sketch sketch;
  };
  std::vector<Gradient> gradients_;
  std::vector<float> values_;  ///< of the part of a tensor that is read
};

}  // namespace acc::optim
