// SPDX-License-Identifier: Apache-2.0
#include "run/options.hpp"

#include "data/batch_file.hpp"

#include <CLI/CLI.hpp>
#include <acc/base/error.hpp>

#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>

namespace train_gpt {
namespace {

constexpr std::int64_t kDefaultSeqLen = 128;
constexpr std::int64_t kDefaultSteps = 100;
constexpr std::int64_t kByteVocabulary = 256;

[[noreturn]] void refuse(const std::string& message) {
  throw acc::Error(acc::Errc::invalid_argument, message);
}

/// The command line as given. Defaults that depend on the data or on other flags are not set yet.
struct Raw {
  Options options;
  std::string model_config;
  std::string dtype = "fp32";
  std::optional<std::int64_t> vocab, seq_len, steps;
};

void add_data_options(CLI::App& app, Raw& raw) {
  auto* data =
      app.add_option("--data", raw.options.data, "text files or folders; a byte is a token")
          ->type_name("FILE|DIR...");
  auto* tokens = app.add_option("--tokens", raw.options.tokens, "file of uint16 token ids")
                     ->type_name("FILE.bin");
  app.add_option("--batches", raw.options.batches,
                 "file of batches, int32 [steps, rows, seq_len + 1]")
      ->type_name("FILE.npy")
      ->excludes(data, tokens);
  tokens->excludes(data);
  app.add_flag("--once_per_epoch", raw.options.once_per_epoch,
               "use each window of seq_len tokens once per epoch, instead of windows at random "
               "positions")
      ->excludes(app.get_option("--batches"));
}

void add_model_options(CLI::App& app, Raw& raw) {
  ModelConfig& model = raw.options.model;
  auto* config = app.add_option("--model_config", raw.model_config, "GPT-2's config.json")
                     ->type_name("config.json");
  app.add_option("--layers", model.layers, "number of transformer blocks")->excludes(config);
  app.add_option("--heads", model.heads, "number of attention heads")->excludes(config);
  app.add_option("--dim", model.dim, "number of channels")->excludes(config);
  app.add_option("--vocab", raw.vocab, "number of token ids; 256 with --data")->excludes(config);
  app.add_option("--dtype", raw.dtype,
                 "dtype of loaded weights; without mixed precision also the compute dtype")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--seq_len", raw.seq_len, "tokens per training sequence");
  app.add_option("--init_from", raw.options.init_from, "initial weights under GPT-2's names")
      ->type_name("FILE.safetensors");
}

const std::map<std::string, Schedule> kSchedules = {
    {"constant", Schedule::constant}, {"linear", Schedule::linear}, {"cosine", Schedule::cosine}};

void add_training_options(CLI::App& app, Raw& raw) {
  Options& options = raw.options;
  app.add_option("--steps", raw.steps,
                 "number of optimizer steps, including earlier steps of a resumed run")
      ->check(CLI::NonNegativeNumber);
  auto* micro_batch =
      app.add_option("--micro_batch", options.micro_batch, "sequences per rank and micro-step")
          ->check(CLI::PositiveNumber);
  app.add_option("--global_batch", options.global_batch,
                 "sequences per step, divided among all ranks and micro-steps")
      ->check(CLI::PositiveNumber)
      ->excludes(micro_batch, app.get_option("--batches"));
  app.add_option("--lr", options.lr, "learning rate after the warm-up");
  app.add_option("--betas", options.betas, "AdamW's decay rates for the two moments")
      ->type_name("B1,B2")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--eps", options.eps, "AdamW's epsilon");
  app.add_option("--weight_decay", options.weight_decay, "weight decay of 2-D weights");
  app.add_option("--grad_clip", options.grad_clip,
                 "global gradient norm to clip to; default: the launcher's setting")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--clip_value", options.clip_value,
                 "bound for each element of the gradient; 0: no bound")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--lr_schedule", options.schedule,
                 "learning rate after the warm-up; linear and cosine reach 0 at the last step")
      ->transform(CLI::Transformer(kSchedules))
      ->option_text("constant|linear|cosine [constant]");
  app.add_option("--warmup", options.warmup,
                 "number of steps in which the learning rate rises from 0")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--no_sync", options.no_sync,
               "accumulate unsharded gradients on each rank and reduce them once per step");
  app.add_option("--seed", options.seed, "seed of initial weights and data order");
}

void add_output_options(CLI::App& app, Raw& raw) {
  Options& options = raw.options;
  app.add_option("--metrics", options.metrics, "file for metrics, one JSON line per step")
      ->type_name("FILE.jsonl");
  app.add_option("--save", options.save,
                 "folder for a checkpoint after the last step, in the format of "
                 "fsdp_state_dict_type")
      ->type_name("DIR");
  app.add_option("--resume", options.resume,
                 "checkpoint to resume from; also one of PyTorch, Accelerate or DeepSpeed")
      ->type_name("DIR");
  app.add_option("--checkpoint", options.checkpoints,
                 "folder of checkpoints; resumes from the newest. SIGUSR1 and SIGTERM save one "
                 "more and end the run")
      ->type_name("DIR");
  app.add_option("--checkpoint_every", options.checkpoint_every, "steps between two checkpoints")
      ->check(CLI::PositiveNumber);
  app.add_option("--total_limit", options.total_limit, "number of checkpoints to keep")
      ->check(CLI::PositiveNumber);
  app.add_option("--export", options.export_to,
                 "export of all weights after the last step: a file, or a folder of safetensors "
                 "files")
      ->type_name("FILE.safetensors|FILE.bin|DIR");
  app.add_option("--sample", options.sample, "number of sampled tokens to print after training")
      ->check(CLI::NonNegativeNumber);
}

/// Sets or checks the sizes that the header of a batches file gives.
void complete_from_batches(Raw& raw) {
  const BatchFileShape shape = read_batch_file_shape(raw.options.batches);
  raw.steps = raw.steps.value_or(shape.steps);
  raw.seq_len = raw.seq_len.value_or(shape.columns - 1);
  if (*raw.steps > shape.steps) {
    refuse("--steps is " + std::to_string(*raw.steps) + " but " + raw.options.batches + " holds " +
           std::to_string(shape.steps) + " steps");
  }
  if (*raw.seq_len != shape.columns - 1) {
    refuse("--seq_len is " + std::to_string(*raw.seq_len) + " but " + raw.options.batches +
           " holds sequences of " + std::to_string(shape.columns - 1) + " and one last target");
  }
}

/// Sets the sizes of the model from --model_config or from the flags, and checks them.
void complete_model(Raw& raw) {
  Options& options = raw.options;
  options.dtype = raw.dtype == "bf16"   ? acc::DType::bfloat16
                  : raw.dtype == "fp16" ? acc::DType::float16
                                        : acc::DType::float32;
  if (!raw.model_config.empty()) {
    options.model = read_model_config(raw.model_config);
    options.seq_len = raw.seq_len.value_or(options.model.max_positions);
  } else {
    if (!raw.vocab && !options.byte_tokens()) {
      refuse("--vocab is needed with --tokens and --batches (or --model_config)");
    }
    options.model.vocab = raw.vocab.value_or(kByteVocabulary);
    options.seq_len = raw.seq_len.value_or(kDefaultSeqLen);
    options.model.max_positions = options.seq_len;
  }
  check_model_config(options.model);
  if (options.seq_len < 1 || options.seq_len > options.model.max_positions) {
    refuse("seq_len must be 1 to " + std::to_string(options.model.max_positions) +
           " (n_positions), got " + std::to_string(options.seq_len));
  }
}

/// Refuses a value that is not finite, negative, or not below `limit`. The negated condition also
/// refuses NaN.
void check_range(const char* flag, double value,
                 double limit = std::numeric_limits<double>::infinity()) {
  if (!(value >= 0.0 && value < limit)) {
    const std::string expected =
        std::isinf(limit) ? "a finite number of at least 0" : "at least 0 and below 1";
    std::ostringstream found;
    found << value;
    refuse(std::string(flag) + " must be " + expected + ", got " + found.str());
  }
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Raw raw;
  CLI::App app("Trains a decoder with the architecture of GPT-2. The launcher sets the sharding.",
               "train_gpt");
  app.option_defaults()->always_capture_default();  // --help shows the defaults
  add_data_options(app, raw);
  add_model_options(app, raw);
  add_training_options(app, raw);
  add_output_options(app, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    refuse(std::string(error.what()) + " (train_gpt --help lists the flags)");
  }
  for (const char* flag :
       {"--lr", "--betas", "--eps", "--weight_decay", "--lr_schedule", "--warmup"}) {
    if (app.count(flag) > 0) {
      raw.options.optimizer_flags.emplace_back(flag);
    }
  }
  if (!raw.options.batches.empty()) {
    complete_from_batches(raw);
  }
  complete_model(raw);
  Options& options = raw.options;
  check_range("--lr", options.lr);
  check_range("--eps", options.eps);
  check_range("--weight_decay", options.weight_decay);
  check_range("--betas", options.betas[0], 1.0);
  check_range("--betas", options.betas[1], 1.0);
  options.steps = raw.steps.value_or(kDefaultSteps);
  if (options.steps > 0 && options.byte_tokens() && options.data.empty()) {
    refuse("nothing to train on: give --data FILE|DIR..., --tokens FILE.bin or --batches FILE.npy");
  }
  return options;
}

}  // namespace train_gpt
