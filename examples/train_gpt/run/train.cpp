// SPDX-License-Identifier: Apache-2.0
#include "run/train.hpp"

#include "model/gemm.hpp"
#include "model/language_model.hpp"
#include "run/metrics.hpp"
#include "run/outputs.hpp"
#include "run/progress.hpp"
#include "run/sampling.hpp"
#include "run/save_request.hpp"
#include "run/training_data.hpp"

#include <acc/runtime.hpp>
#include <acc/runtime/checkpoint_series.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace train_gpt {
namespace {

// The run of one rank. All ranks run the same code; the runtime shards parameters, gradients and
// optimizer state as the launcher's settings say. Only rank 0 prints and checks output paths.

acc::AdamW adamw(const Options& options) {
  return {.lr = options.lr,
          .beta1 = options.betas[0],
          .beta2 = options.betas[1],
          .eps = options.eps,
          .weight_decay = options.weight_decay};
}

acc::LrSchedule schedule(const Options& options) {
  switch (options.schedule) {
    case Schedule::constant: break;
    case Schedule::linear: return acc::linear_with_warmup(options.warmup, options.steps);
    case Schedule::cosine: return acc::cosine_with_warmup(options.warmup, options.steps);
  }
  return acc::constant_with_warmup(options.warmup);
}

/// Refuses optimizer flags if the launcher's configuration (a DeepSpeed file) defines the
/// optimizer.
void check_optimizer(const acc::Runtime& runtime, const Options& options) {
  const std::string& configured = runtime.settings().sharding.optimizer.type;
  if (!configured.empty() && !options.optimizer_flags.empty()) {
    throw acc::Error(acc::Errc::config,
                     options.optimizer_flags.front() +
                         " is given, but the DeepSpeed file defines the optimizer (" + configured +
                         "): remove one of them");
  }
}

acc::Optimizer make_optimizer(const acc::Runtime& runtime, const Options& options,
                              acc::Model& model) {
  if (!runtime.settings().sharding.optimizer.type.empty()) {
    return model.optimizer_from_settings();
  }
  acc::Optimizer optimizer = model.optimizer(adamw(options));
  optimizer.set_schedule(schedule(options));
  return optimizer;
}

// Key of the step number in the program state that a checkpoint carries.
constexpr const char* kStepKey = "step";

acc::SavedState saved_state(std::int64_t step, const std::optional<acc::DataOrder>& order) {
  acc::SavedState state{.program = {{kStepKey, step}}, .of_rank = {}};
  if (order) {
    state.program.merge(order->state());
  }
  return state;
}

/// Returns the number of the last step before a checkpoint was saved: the number that this program
/// stored, or, in a checkpoint of another program, the optimizer's number of steps.
std::int64_t step_of(const acc::SavedState& state, const acc::Optimizer& optimizer) {
  const auto found = state.program.find(kStepKey);
  const auto* step =
      found == state.program.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  return step == nullptr ? optimizer.steps() : *step;
}

void shape_batch(Batch& batch, const Share& share, std::int64_t seq_len) {
  batch.shape = {.batch = share.count, .time = seq_len};
  batch.weight = share.weight;
  batch.inputs.resize(static_cast<std::size_t>(batch.shape.rows()));
  batch.targets.resize(batch.inputs.size());
}

DataParallel data_parallel(const acc::Runtime& runtime) {
  return {.rank = runtime.rank(),
          .world_size = runtime.world_size(),
          .micro_steps = runtime.gradient_accumulation_steps()};
}

/// The model of one rank and its training loop.
class Trainer {
 public:
  Trainer(acc::Runtime& runtime, const Options& options)
      : runtime_(runtime),
        options_(options),
        parallel_(data_parallel(runtime)),
        global_batch_(global_batch(options, parallel_)),
        data_(options.steps > 0 ? open_data(options, parallel_) : nullptr),
        order_(data_order(runtime, options, data_.get())),
        model_(runtime.model(options.seed,
                             {.dtype = options.dtype,
                              .bfloat16_on_cpu = has_bf16_products(),
                              .fp8 = runtime.device().kind != acc::settings::Device::cpu})),
        gpt_(
            make_language_model(runtime, model_, options.model,
                                {.batch = global_batch_.largest_share(), .time = options.seq_len})),
        optimizer_(make_optimizer()) {
    if (!options.checkpoints.empty()) {
      series_.emplace(runtime, options.checkpoints,
                      acc::CheckpointSeries::Options{.total_limit = options.total_limit});
    }
  }

  /// Trains. Returns the signal that ended the run after a checkpoint; 0 after the last step.
  int run(SaveRequest* request) {
    if (runtime_.rank() == 0) {
      check_outputs(options_);
    }
    announce();
    const int signal = train_to_end(request);
    if (signal == 0) {
      finish();
    }
    return signal;
  }

 private:
  acc::Optimizer make_optimizer() {
    if (!options_.init_from.empty()) {
      model_.load_weights(options_.init_from);
    }
    acc::Optimizer optimizer = train_gpt::make_optimizer(runtime_, options_, model_);
    if (options_.grad_clip) {
      optimizer.set_clip_norm(*options_.grad_clip);
    }
    if (options_.clip_value > 0.0) {
      optimizer.set_clip_value(options_.clip_value);
    }
    return optimizer;
  }

  void announce() const {
    if (runtime_.rank() == 0) {
      const std::string loaded = options_.dtype == acc::DType::float32
                                     ? ""
                                     : " loaded in " + std::string(to_string(options_.dtype));
      std::printf("%.1f M parameters%s, %s\n", static_cast<double>(model_.numel()) * 1e-6,
                  loaded.c_str(), runtime_.summary().c_str());
      std::fflush(stdout);
    }
  }

  /// Trains. If another rank is lost and replaced, goes on from the last state that all have.
  int train_to_end(SaveRequest* request) {
    const acc::ProgramState first_position = order_ ? order_->state() : acc::ProgramState();
    std::optional<acc::CheckpointSeries::Resumed> resumed;
    bool has_resumed = false;
    while (true) {
      try {
        if (!std::exchange(has_resumed, true)) {
          resumed = resume();
        }
        const std::int64_t first = start(resumed);
        return first < options_.steps ? train_steps(first, request) : 0;
      } catch (const acc::Error& error) {
        if (!series_ || !series_->can_rejoin(error)) {
          throw;
        }
        resumed = series_->rejoin(model_, optimizer_);
        parallel_ = data_parallel(runtime_);  // there may be more or fewer ranks
        global_batch_ = global_batch(options_, parallel_);
        gpt_->restart(global_batch_.largest_share());
        if (order_) {
          static_cast<void>(order_->load(first_position));
        }
      }
    }
  }

  std::optional<acc::CheckpointSeries::Resumed> resume() {
    auto resumed = series_ ? series_->resume(model_, optimizer_) : std::nullopt;
    if (!resumed && !options_.resume.empty()) {
      resumed = {runtime_.load(options_.resume, model_, optimizer_), options_.resume};
    }
    return resumed;
  }

  /// Goes to the position of a state that was loaded. Returns the number of steps already made.
  std::int64_t start(const std::optional<acc::CheckpointSeries::Resumed>& resumed) {
    if (!resumed) {
      return 0;
    }
    const std::string& from = resumed->from;
    const std::int64_t step = step_of(resumed->state, optimizer_);
    if (order_ && !order_->load(resumed->state.program) && runtime_.rank() == 0) {
      std::printf("%s has no position in the data: the first epoch begins\n", from.c_str());
    }
    if (runtime_.rank() == 0) {
      std::printf("resuming from step %lld (%s)\n", static_cast<long long>(step), from.c_str());
      std::fflush(stdout);
    }
    return step;
  }

  /// Makes steps until the last one or until all ranks agree to end. A checkpoint is saved every
  /// checkpoint_every steps, after the last step and before an early end.
  int train_steps(std::int64_t first, SaveRequest* request) {
    MetricsFile metrics(runtime_, options_.metrics, first > 0);
    Progress progress(runtime_.rank() == 0, options_.steps);
    const auto report = [&](const IssuedResult& issued) {
      const StepResult result = result_of(issued);
      progress.show(result);
      metrics.write(result, model_, *gpt_);
    };
    // On a GPU a step's results are read when the next one is issued, so that the GPU never waits
    // for the host. Metrics are gathered over all ranks, for which the host waits anyway.
    const bool reports_late =
        runtime_.device().kind != acc::settings::Device::cpu && options_.metrics.empty();
    std::optional<IssuedResult> previous;
    if (request != nullptr) {
      request->training_begins();
    }
    for (std::int64_t step = first; step < options_.steps; ++step) {
      if (!previous) {
        ended_ = std::chrono::steady_clock::now();
      }
      IssuedResult issued = train_step(step);
      if (previous) {
        report(*previous);
        previous.reset();
      }
      const int signal = request != nullptr ? request->agreed(runtime_) : 0;
      const std::int64_t done = step + 1;
      const bool last = done == options_.steps;
      const bool saves = series_ && (last || signal != 0 || done % options_.checkpoint_every == 0);
      if (!reports_late || last || saves || signal != 0) {
        report(issued);
      } else {
        previous = std::move(issued);
      }
      if (saves) {
        series_->save(model_, optimizer_, saved_state(done, order_));
        if (last || signal != 0) {
          runtime_.wait_save();  // what is said at the end is true
        }
      }
      if (series_ && !last) {  // last, because it throws if ranks change
        series_->keep_in_memory(model_, optimizer_, saved_state(done, order_));
      }
      if (signal != 0 && !last) {
        announce_end(signal, done);
        return signal;
      }
    }
    return 0;
  }

  void announce_end(int signal, std::int64_t step) const {
    if (runtime_.rank() == 0) {
      std::printf("received %s: saved a checkpoint after step %lld, ending\n",
                  signal == SIGTERM ? "SIGTERM" : "SIGUSR1", static_cast<long long>(step));
      std::fflush(stdout);
    }
  }

  /// A step whose work has been issued. The loss is the mean over all ranks, so that every rank
  /// reports the same number.
  struct IssuedResult {
    std::int64_t step;
    acc::IssuedStep optimizer;
    acc::IssuedMean loss;
  };

  /// Issues one optimizer step of all micro-steps.
  IssuedResult train_step(std::int64_t step) {
    model_.reset_traffic();
    draw_windows();
    std::size_t drawn = 0;
    for (std::int64_t micro_step = 0; micro_step < parallel_.micro_steps; ++micro_step) {
      // Under no_sync gradients stay on their rank until the last micro-step reduces their sum.
      const bool reduced = !options_.no_sync || micro_step + 1 == parallel_.micro_steps;
      const std::shared_ptr<void> no_sync = reduced ? nullptr : model_.no_sync();
      const Share share = global_batch_.share(micro_step);
      shape_batch(batch_, share, options_.seq_len);
      batch_.loss_scale = static_cast<float>(optimizer_.loss_scale());
      const std::size_t windows = order_ ? static_cast<std::size_t>(share.count) : 0;
      data_->read({.step = step,
                   .sequence = share.first,
                   .windows = std::span(used_).subspan(drawn, windows)},
                  batch_);
      drawn += windows;
      gpt_->train(batch_);
    }
    return {.step = step + 1,
            .optimizer = optimizer_.issue_step(),
            .loss = gpt_->take_loss(runtime_, static_cast<double>(parallel_.micro_steps))};
  }

  /// Draws this rank's windows of a step. They are recorded before the ranks meet in the step: then
  /// those of each step that any rank has made are, although another one is lost at once.
  void draw_windows() {
    used_.clear();
    if (!order_) {
      return;
    }
    const acc::DataBatch batch = order_->next(global_batch_.sequences());
    for (std::int64_t micro_step = 0; micro_step < parallel_.micro_steps; ++micro_step) {
      const Share share = global_batch_.share(micro_step);
      const std::size_t before = used_.size();
      used_.resize(before + static_cast<std::size_t>(share.count));
      order_->samples(batch, {share.first, share.count}, std::span(used_).subspan(before));
    }
    order_->advance(batch, used_);
  }

  /// Waits for the results of a step. Its time counts from the end of the step before it, or from
  /// its own begin if that has been reported already.
  StepResult result_of(const IssuedResult& issued) {
    const acc::StepInfo info = issued.optimizer.result();
    const double loss = issued.loss.value();
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> elapsed = now - std::exchange(ended_, now);
    const auto tokens = static_cast<double>(global_batch_.sequences() * options_.seq_len);
    runtime_.report(
        {{"loss", loss}, {"tokens_per_s", tokens / elapsed.count() / runtime_.world_size()}});
    return {.step = issued.step,
            .loss = loss,
            .grad_norm = info.grad_norm,
            .lr = info.lr,
            .loss_scale = info.loss_scale,
            .skipped = info.skipped,
            .seconds = elapsed.count(),
            .tokens_per_second = tokens / elapsed.count(),
            .flops_per_second =
                training_flops(options_.model, options_.seq_len, 1) * tokens / elapsed.count()};
  }

  void finish() {
    if (!options_.save.empty()) {
      if (runtime_.settings().sharding.save_async) {
        runtime_.save_async(options_.save, model_, optimizer_, saved_state(options_.steps, order_));
      } else {
        runtime_.save(options_.save, model_, optimizer_, saved_state(options_.steps, order_));
      }
    }
    if (!options_.export_to.empty()) {
      model_.export_weights(options_.export_to);
    }
    if (options_.sample > 0) {
      print_sample();
    }
    runtime_.wait_save();
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
  GlobalBatch global_batch_;
  std::unique_ptr<DataSource> data_;     // opened before the model, so that wrong data fail early
  std::optional<acc::DataOrder> order_;  // of windows; absent: they are at random positions
  std::vector<acc::DataSample> used_;    // windows of this rank in the present step
  acc::Model model_;
  std::unique_ptr<LanguageModel> gpt_;
  acc::Optimizer optimizer_;
  Batch batch_;
  std::optional<acc::CheckpointSeries> series_;
  std::chrono::steady_clock::time_point ended_;  ///< from when the current step's time counts
};

}  // namespace

int train(const Options& options) {
  std::optional<SaveRequest> request;
  if (!options.checkpoints.empty()) {
    request.emplace();  // before other threads start; until now the signals kill the process
  }
  acc::Runtime runtime = acc::Runtime::from_environment();
  check_optimizer(runtime, options);
  return Trainer(runtime, options).run(request ? &*request : nullptr);
}

}  // namespace train_gpt
