#pragma once

#include "model_config.hpp"

#include <acc/runtime/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace train_gpt {

enum class Schedule { constant, linear, cosine };

/// The command line. Exactly one of data, tokens and batches is given, unless there is nothing to
/// train.
struct Options {
  std::vector<std::string> data;  ///< files or folders, bytes as tokens
  std::string tokens;             ///< uint16 token ids
  std::string batches;            ///< .npy, int32 [steps, rows, seq_len + 1]

  ModelConfig model;
  std::int64_t seq_len = 0;
  std::string init_from;
  acc::DType dtype = acc::DType::float32;  ///< in which weights are loaded

  std::int64_t steps = 0;  ///< the step to stop at, a resumed run's earlier ones included
  std::optional<std::int64_t> micro_batch;   ///< sequences of a rank in one forward and backward
  std::optional<std::int64_t> global_batch;  ///< of all ranks in one step, however many there are
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;        ///< of 2-D weights
  std::optional<double> grad_clip;  ///< absent: what the launcher says
  double clip_value = 0.0;          ///< of each element of the gradient; 0: none
  Schedule schedule = Schedule::constant;
  std::int64_t warmup = 0;  ///< steps of linear rise of the learning rate, from 0
  bool no_sync = false;     ///< gradients of all micro-steps but the last stay on their rank
  /// Those of the flags above that say what the optimizer is, as far as they were given.
  std::vector<std::string> optimizer_flags;
  std::uint64_t seed = 0;

  std::string metrics;
  std::string save;
  std::string resume;
  std::string checkpoints;              ///< folder of an acc::CheckpointSeries
  std::int64_t checkpoint_every = 100;  ///< steps
  int total_limit = 2;                  ///< checkpoints that are kept
  std::string export_to;
  std::int64_t sample = 0;

  /// True when a token is a byte, so that samples are text.
  [[nodiscard]] bool byte_tokens() const { return tokens.empty() && batches.empty(); }
};

/// Nothing when help was asked for and printed. Throws Error(config) for what cannot be run.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace train_gpt
