#include "train.hpp"

#include "data_source.hpp"
#include "language_model.hpp"
#include "metrics.hpp"
#include "outputs.hpp"
#include "progress.hpp"
#include "sampling.hpp"

#include <acc/runtime.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

namespace train_gpt {
namespace {

constexpr const char* kStepKey = "step";  // in the checkpoint's program state

acc::AdamW adamw(const Options& options) {
  return {.lr = options.lr,
          .beta1 = options.betas[0],
          .beta2 = options.betas[1],
          .eps = options.eps,
          .weight_decay = options.weight_decay};
}

/// Rises linearly to --lr over --warmup steps and stays there. `step` counts from 0.
double learning_rate(const Options& options, std::int64_t step) {
  const double warmup = static_cast<double>(std::max<std::int64_t>(options.warmup, 1));
  return options.lr * std::min(1.0, static_cast<double>(step + 1) / warmup);
}

Batch make_batch(BatchShape shape) {
  const auto count = static_cast<std::size_t>(shape.rows());
  return {.inputs = std::vector<std::int32_t>(count),
          .targets = std::vector<std::int32_t>(count),
          .shape = shape};
}

DataParallel data_parallel(const acc::Runtime& runtime) {
  return {.rank = runtime.rank(),
          .world_size = runtime.world_size(),
          .micro_steps = runtime.gradient_accumulation_steps()};
}

/// One rank's model and the steps over it.
class Trainer {
 public:
  Trainer(acc::Runtime& runtime, const Options& options)
      : runtime_(runtime),
        options_(options),
        parallel_(data_parallel(runtime)),
        shape_{.batch = micro_batch_size(options, parallel_), .time = options.seq_len},
        data_(options.steps > 0 ? open_data(options, parallel_) : nullptr),
        model_(runtime.model(options.seed)),
        gpt_(make_language_model(runtime, model_, options.model, shape_)),
        optimizer_(make_optimizer()) {}

  void run() {
    if (runtime_.rank() == 0) {
      check_outputs(options_);
    }
    announce();
    const std::int64_t first = start();
    if (first < options_.steps) {
      train_steps(first);
    }
    finish();
  }

 private:
  acc::Optimizer make_optimizer() {
    if (!options_.init_from.empty()) {
      model_.load_safetensors(options_.init_from);
    }
    acc::Optimizer optimizer = model_.optimizer(adamw(options_));
    if (options_.grad_clip) {
      optimizer.set_clip_norm(*options_.grad_clip);
    }
    return optimizer;
  }

  void announce() const {
    if (runtime_.rank() == 0) {
      std::printf("%.1f M parameters, %s\n", static_cast<double>(model_.numel()) * 1e-6,
                  runtime_.describe().c_str());
      std::fflush(stdout);
    }
  }

  /// Steps that were made before: 0, or the checkpoint's.
  std::int64_t start() {
    if (options_.resume.empty()) {
      return 0;
    }
    const acc::ProgramState program = runtime_.load(options_.resume, model_, optimizer_);
    const auto step = program.find(kStepKey);
    if (step == program.end()) {
      throw acc::Error(acc::Errc::config,
                       options_.resume + ": the checkpoint names no step; another program's?");
    }
    return step->second;
  }

  void train_steps(std::int64_t first) {
    MetricsFile metrics(runtime_, options_.metrics, !options_.resume.empty());
    Progress progress(runtime_.rank() == 0, options_.steps);
    Batch batch = make_batch(shape_);
    for (std::int64_t step = first; step < options_.steps; ++step) {
      const StepResult result = train_step(step, batch);
      progress.show(result);
      metrics.write(result, model_, gpt_->activation_bytes());
    }
  }

  StepResult train_step(std::int64_t step, Batch& batch) {
    const auto begin = std::chrono::steady_clock::now();
    model_.reset_traffic();
    optimizer_.set_lr(learning_rate(options_, step));
    for (std::int64_t micro_step = 0; micro_step < parallel_.micro_steps; ++micro_step) {
      data_->read({.step = step, .micro_step = micro_step}, batch);
      gpt_->train(batch);
    }
    const acc::StepInfo info = optimizer_.step();
    const double loss =
        runtime_.mean(gpt_->take_loss() / static_cast<double>(parallel_.micro_steps));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    const auto tokens =
        static_cast<double>(shape_.rows() * parallel_.micro_steps * parallel_.world_size);
    return {.step = step + 1,
            .loss = loss,
            .grad_norm = info.grad_norm,
            .lr = optimizer_.lr(),
            .seconds = elapsed.count(),
            .tokens_per_second = tokens / elapsed.count(),
            .flops_per_second =
                training_flops(options_.model, options_.seq_len, 1) * tokens / elapsed.count()};
  }

  void finish() {
    if (!options_.save.empty()) {
      runtime_.save(options_.save, model_, optimizer_, {{kStepKey, options_.steps}});
    }
    if (!options_.export_to.empty()) {
      model_.export_safetensors(options_.export_to);
    }
    if (options_.sample > 0) {
      print_sample();
    }
  }

  void print_sample() {
    const auto no_grad = model_.no_grad();
    const std::vector<std::int32_t> prompt = {options_.byte_tokens() ? '\n' : 0};
    const auto tokens =
        sample_tokens(*gpt_, prompt, options_.sample, options_.seq_len, options_.seed);
    if (runtime_.rank() == 0) {
      std::printf("sample:\n%s\n", printable(tokens, options_.byte_tokens()).c_str());
      std::fflush(stdout);
    }
  }

  acc::Runtime& runtime_;
  const Options& options_;
  DataParallel parallel_;
  BatchShape shape_;
  std::unique_ptr<DataSource> data_;  // opened before the model: bad data fail at once
  acc::Model model_;
  std::unique_ptr<LanguageModel> gpt_;
  acc::Optimizer optimizer_;
};

}  // namespace

void train(const Options& options) {
  acc::Runtime runtime = acc::Runtime::from_environment();
  Trainer(runtime, options).run();
}

}  // namespace train_gpt
