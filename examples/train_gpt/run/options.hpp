// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/model_config.hpp"

#include <acc/runtime/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace train_gpt {

/// Schedule of the learning rate after the warm-up.
enum class Schedule { constant, linear, cosine };

/// The command line. Exactly one of data, tokens and batches is given, unless steps is 0.
struct Options {
  std::vector<std::string> data;  ///< files or folders; each byte is a token
  std::string tokens;             ///< uint16 token ids
  std::string batches;            ///< .npy, int32 [steps, rows, seq_len + 1]

  ModelConfig model;
  std::int64_t seq_len = 0;
  std::string init_from;
  acc::DType dtype = acc::DType::float32;  ///< dtype in which weights are loaded

  std::int64_t steps = 0;  ///< number of the last step; a resumed run's earlier steps count
  std::optional<std::int64_t> micro_batch;   ///< sequences per rank, forward and backward
  std::optional<std::int64_t> global_batch;  ///< sequences per step over all ranks
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;        ///< for 2-D weights
  std::optional<double> grad_clip;  ///< global norm; absent: the launcher's setting
  double clip_value = 0.0;          ///< bound for each element of the gradient; 0: none
  Schedule schedule = Schedule::constant;
  std::int64_t warmup = 0;      ///< steps in which the learning rate rises linearly from 0
  bool once_per_epoch = false;  ///< use each window of seq_len tokens once per epoch
  bool no_sync = false;         ///< reduce gradients only in the last micro-step of a step
  /// The given flags that define the optimizer. They contradict an optimizer in a DeepSpeed file.
  std::vector<std::string> optimizer_flags;
  std::uint64_t seed = 0;

  std::string metrics;
  std::string save;
  std::string resume;
  std::string checkpoints;              ///< folder of an acc::CheckpointSeries
  std::int64_t checkpoint_every = 100;  ///< steps
  int total_limit = 2;                  ///< number of checkpoints to keep
  std::string export_to;
  std::int64_t sample = 0;

  /// True if a token is a byte, so that samples can be printed as text.
  [[nodiscard]] bool byte_tokens() const { return tokens.empty() && batches.empty(); }
};

/// Parses the command line. Returns nullopt after printing the help text. Throws Error(config) for
/// options that cannot work.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace train_gpt
