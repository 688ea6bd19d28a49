// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"
#include "support/saved_step.hpp"
#include "support/temporary_folder.hpp"
#include "support/weights.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

// Random combinations of settings, with fixed seeds. First the computation is drawn (`Task`), then
// the way in which it is sharded, gathered and reduced (`Layout`). A run with one layout up to a
// checkpoint and another one from there must give the same weights as NO_SHARD.
namespace {

using acc::DType;
using acc::settings::BackwardPrefetch;
using acc::settings::MixedPrecision;
using acc::settings::NanPolicy;
using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::settings::WrapPolicy;
using acc::test::Job;
using acc::test::Weights;

constexpr int kSteps = 4;
constexpr int kSavedAfter = 2;

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : engine_(seed) {}
  /// Returns one of 0, 1, …, n - 1. Does not use the distributions of the standard library, whose
  /// values differ between implementations.
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint32_t>(n)); }
  bool once_in(int n) { return below(n) == 0; }
  template <typename T>
  T of(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(below(static_cast<int>(choices.size())))];
  }

 private:
  std::mt19937 engine_;
};

/// The computation, whose result must be the same in every layout.
struct Task {
  int world_size = 2;
  int micro_steps = 1;
  MixedPrecision mixed = MixedPrecision::no;
  acc::ModelOptions options;
  bool ignores = false;
  bool clips = false;
  bool overflows = false;  ///< one gradient overflows: in one step, on one rank, in one unit
  bool adamw = false;

  [[nodiscard]] bool is_float32() const {
    return mixed == MixedPrecision::no && options.dtype == DType::float32;
  }
  [[nodiscard]] std::string words() const {
    return fmt::format("{} ranks, {} micro-steps, mixed {}, load {}{}{}{}{}{}", world_size,
                       micro_steps, to_string(mixed), to_string(options.dtype),
                       options.bfloat16_on_cpu ? ", bfloat16 in use" : "",
                       ignores ? ", ignored" : "", clips ? ", clipped" : "",
                       overflows ? ", overflows" : "", adamw ? ", AdamW" : "");
  }
};

Task draw_task(Draw& draw) {
  Task task;
  task.world_size = draw.of<int>({2, 2, 3, 4});
  task.micro_steps = draw.of<int>({1, 2, 3});
  task.mixed = draw.of<MixedPrecision>(
      {MixedPrecision::no, MixedPrecision::no, MixedPrecision::bf16, MixedPrecision::fp16});
  task.options.dtype = draw.once_in(4) ? DType::bfloat16 : DType::float32;
  task.options.bfloat16_on_cpu = draw.once_in(2);
  task.ignores = draw.once_in(3);
  task.clips = draw.once_in(2);
  task.overflows = draw.once_in(4);
  task.adamw = task.is_float32() && draw.once_in(2);
  return task;
}

/// The way in which a task is sharded, gathered and reduced.
struct Layout {
  ShardingSettings sharding;
  int machines = 1;
  bool copy_gathers = false;
  bool recomputes = false;
  bool evaluates = false;         ///< between micro-steps, and between forward and backward
  bool accompanied = false;       ///< trains a bfloat16 model in the same process as well
  std::uint32_t quiet_steps = 0;  ///< one bit per micro-step: under no_sync

  [[nodiscard]] std::string words() const {
    const ShardingSettings& s = sharding;
    return fmt::format(
        "{} on {} machines{}: shard {}, hpz {}, reshard {}, prefetch {} {} {}, live {}, reuse {}, "
        "persistent {} of {}, buckets {} {}, overlap {}, contiguous {}, round robin {}, wrap {}, "
        "tiles {}, zero3_init {}, reduce {}; recompute {}, evaluate {}, accompanied {}, "
        "quiet {:b}",
        to_string(s.strategy), machines, copy_gathers ? " copying" : "", s.shard_size,
        s.hpz_partition_size, s.reshard_size, to_string(s.backward_prefetch), s.forward_prefetch,
        s.prefetch_bucket_size, s.max_live_parameters, s.max_reuse_distance,
        s.param_persistence_threshold, s.model_persistence_threshold, s.reduce_bucket_size,
        s.allgather_bucket_size, s.overlap_comm, s.contiguous_gradients, s.round_robin_gradients,
        to_string(s.wrap_policy), s.sub_group_size, s.zero3_init,
        s.reduce_precision ? to_string(*s.reduce_precision) : "default", recomputes, evaluates,
        accompanied, quiet_steps);
  }
};

void draw_groups(Draw& draw, const Task& task, Layout& layout) {
  ShardingSettings& s = layout.sharding;
  const bool even = task.world_size % 2 == 0;
  layout.machines = even && draw.once_in(3) ? 2 : 1;
  layout.copy_gathers = draw.once_in(2);
  s.strategy =
      draw.of<Strategy>({Strategy::no_shard, Strategy::shard_optimizer, Strategy::shard_grad_op,
                         Strategy::full_shard, Strategy::full_shard, Strategy::full_shard,
                         Strategy::hybrid_shard, Strategy::hybrid_shard_zero2});
  const bool hybrid =
      s.strategy == Strategy::hybrid_shard || s.strategy == Strategy::hybrid_shard_zero2;
  s.shard_size = !hybrid ? 0 : even ? draw.of<int>({2, task.world_size}) : task.world_size;
  const bool secondary = even && draw.once_in(2);
  if (secondary && s.strategy == Strategy::full_shard && draw.once_in(2)) {
    s.hpz_partition_size = 2;
  } else if (secondary &&
             (s.strategy == Strategy::full_shard || s.strategy == Strategy::hybrid_shard)) {
    s.reshard_size = 2;
  }
}

void draw_schedule(Draw& draw, ShardingSettings& s) {
  s.backward_prefetch = draw.of<BackwardPrefetch>(
      {BackwardPrefetch::none, BackwardPrefetch::backward_pre, BackwardPrefetch::backward_post});
  s.forward_prefetch = draw.once_in(2);
  s.limit_all_gathers = draw.once_in(2);
  s.prefetch_bucket_size = draw.of<std::int64_t>({0, 0, 60, 200});
  s.max_live_parameters = draw.of<std::int64_t>({ShardingSettings::kUnbounded, 90, 1});
  s.max_reuse_distance = draw.of<std::int64_t>({0, 50, 1000});
  s.param_persistence_threshold = draw.of<std::int64_t>({0, 20, 50, 1000});
  s.model_persistence_threshold = draw.of<std::int64_t>({ShardingSettings::kUnbounded, 60});
}

void draw_flats(Draw& draw, ShardingSettings& s) {
  s.reduce_bucket_size = draw.of<std::int64_t>({0, 0, 40, 100});
  s.allgather_bucket_size = draw.of<std::int64_t>({0, 50});
  s.overlap_comm = draw.once_in(2);
  s.contiguous_gradients = !draw.once_in(4);
  s.round_robin_gradients = draw.once_in(2);
  s.wrap_policy = draw.of<WrapPolicy>({WrapPolicy::unset, WrapPolicy::unset, WrapPolicy::no_wrap,
                                       WrapPolicy::size_based, WrapPolicy::transformer_based});
  s.min_num_params = 50;
  s.transformer_layer_classes = {"Block"};
  s.sub_group_size = draw.of<std::int64_t>({0, 16, 33});
  s.zero3_init = draw.once_in(2);
}

Layout draw_layout(Draw& draw, const Task& task) {
  Layout layout;
  draw_groups(draw, task, layout);
  draw_schedule(draw, layout.sharding);
  draw_flats(draw, layout.sharding);
  if (!task.is_float32() && draw.once_in(2)) {
    layout.sharding.reduce_precision = MixedPrecision::no;
  }
  layout.recomputes = draw.once_in(3);
  layout.evaluates = draw.once_in(3);
  layout.quiet_steps = draw.once_in(2) ? static_cast<std::uint32_t>(draw.below(1 << 12)) : 0;
  layout.accompanied = draw.once_in(3);
  return layout;
}

/// Access to parameters and gradients in any view dtype.
float value_at(const void* values, DType dtype, int i) {
  if (dtype == DType::float32) {
    return static_cast<const float*>(values)[i];
  }
  const std::uint32_t upper = static_cast<const std::uint16_t*>(values)[i];
  return std::bit_cast<float>(upper << 16U);
}

void put_at(void* values, DType dtype, int i, float value) {
  if (dtype == DType::float32) {
    static_cast<float*>(values)[i] = value;
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t to_even = 0x7fffU + ((bits >> 16U) & 1U);
  static_cast<std::uint16_t*>(values)[i] = static_cast<std::uint16_t>((bits + to_even) >> 16U);
}

/// Nested units, one of which opens another one's, with sizes that no number of ranks divides, and
/// parameters that are frozen, tied, without a gradient, or different per rank (ignored).
class Net {
 public:
  Net(const acc::Model& model, bool recomputes) : model_(model), recomputes_(recomputes) {
    acc::Unit& root = model_.root("net", "Net");
    add(root, "embedding", 39);
    root.tie("net.head", parameters_.at("net")[0].handle);
    add(root, "bias", 5, {.weight_decay = false});
    acc::Unit& outer = model_.unit("net.outer", "Block");
    add(outer, "weight", 77);
    add(outer, "fixed", 3, {.trainable = false});
    add(outer, "inner.bias", 13);
    acc::Unit& inner = model_.unit("net.outer.inner", "Layer");
    add(inner, "weight", 45);
    acc::Unit& alone = model_.unit("net.alone", "Block");
    add(alone, "weight", 64);
    add(alone, "unused", 17);
    acc::Unit& own = model_.unit("net.own", "Own");
    add(own, "weight", 23);
    acc::Unit& frozen = model_.unit("net.frozen", "Block");
    add(frozen, "weight", 29, {.trainable = false});
    order_ = {&root, &outer, &inner, &alone, &own, &frozen};
  }

  /// The program's gradient, a function of weight, rank, step and element. fault: the value that is
  /// infinite.
  void micro_step(int rank, int number, float scale, bool fault, bool evaluates) {
    scale_ = scale * static_cast<float>(1 + (rank * 7 + number * 3) % 5) / 5.0F;
    fault_ = fault;
    {
      const auto root = order_[0]->forward();
      {
        const auto outer = order_[1]->forward();
        const auto inner = order_[2]->forward();
      }
      for (const std::size_t leaf : {3U, 4U, 5U}) {
        const auto use = order_[leaf]->forward();
      }
    }
    if (evaluates) {
      read();
    }
    auto root = order_[0]->backward();
    for (const std::size_t leaf : {5U, 4U, 3U}) {
      auto use = order_[leaf]->backward();
      push(*order_[leaf], use);
    }
    if (recomputes_) {
      const auto outer = order_[1]->recompute();
      const auto inner = order_[2]->recompute();
    }
    auto outer = order_[1]->backward();
    {
      auto inner = order_[2]->backward();
      push(*order_[2], inner);
    }
    push(*order_[1], outer);
    push(*order_[0], root);
    push(*order_[0], root);  // written twice
  }

  Weights read() {
    const auto guard = model_.no_grad();
    const DType dtype = model_.compute_dtype();
    Weights all;
    for (acc::Unit* unit : order_) {
      const auto use = unit->forward();
      for (const Declared& each : parameters_.at(unit->name())) {
        std::vector<float>& values = all[unit->name() + "." + each.name];
        for (int i = 0; i < each.numel; ++i) {
          values.push_back(value_at(use.raw(each.handle), dtype, i));
        }
      }
    }
    return all;
  }

 private:
  struct Declared {
    std::string name;
    int numel;
    acc::Parameter handle;
  };

  void add(acc::Unit& unit, const std::string& name, int numel, acc::ParameterOptions how = {}) {
    parameters_[unit.name()].push_back(
        {name, numel, unit.parameter(name, {numel}, acc::uniform(-1.0F, 1.0F), how)});
  }

  void push(const acc::Unit& unit, acc::BackwardUse& use) {
    const DType dtype = model_.compute_dtype();
    for (const Declared& each : parameters_.at(unit.name())) {
      if (each.name == "unused") {
        continue;
      }
      const void* const weights = use.raw(each.handle);
      const acc::RawGradient to = use.raw_grad(each.handle);
      for (int i = 0; to.data != nullptr && i < each.numel; ++i) {
        const float before = to.beta == 0.0F ? 0.0F : value_at(to.data, dtype, i);
        const float rule = 0.1F * value_at(weights, dtype, i) + std::sin(static_cast<float>(i));
        put_at(to.data, dtype, i, before + scale_ * rule);
      }
      if (to.data != nullptr && fault_ && unit.name() == "net.alone") {
        put_at(to.data, dtype, 7, std::numeric_limits<float>::infinity());
      }
    }
  }

  acc::Model model_;
  bool recomputes_;
  float scale_ = 1.0F;
  bool fault_ = false;
  std::vector<acc::Unit*> order_;
  std::map<std::string, std::vector<Declared>> parameters_;
};

Job job_of(const Task& task, const Layout& layout) {
  Job job{.world_size = task.world_size,
          .num_machines = layout.machines,
          .sharding = layout.sharding,
          .copy_gathers = layout.copy_gathers};
  job.sharding.gradient_accumulation_steps = task.micro_steps;
  job.sharding.mixed_precision = task.mixed;
  job.sharding.loss_scaling.initial_scale_power = 3;
  job.sharding.nan_policy = task.overflows ? NanPolicy::skip : NanPolicy::ignore;
  job.sharding.ignored_modules = task.ignores ? R"(net\.own)" : "";
  return job;
}

/// Another model of the same process; its collectives are issued between those of the first.
class Companion {
 public:
  explicit Companion(acc::Runtime& runtime)
      : model_(runtime.model(7, {.dtype = DType::bfloat16})),
        net_(model_, false),
        optimizer_(model_.optimizer(acc::Sgd{.lr = 0.1})) {}
  void micro_step(int rank, int number) { net_.micro_step(rank, number, 1.0F, false, false); }
  void step() { optimizer_.step(); }

 private:
  acc::Model model_;
  Net net_;
  acc::Optimizer optimizer_;
};

/// Trains from the checkpoint `from`, if any, until step `until`, and saves to `to`, if given.
/// Returns the weights of each rank.
std::vector<Weights> run(const Task& task, const Layout& layout, const std::string& from, int until,
                         const std::string& to) {
  std::vector<Weights> seen(static_cast<std::size_t>(task.world_size));
  acc::test::run_ranks(job_of(task, layout), [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(from.empty() ? 42 : 43, task.options);
    Net net(model, layout.recomputes);
    auto optimizer = task.adamw ? model.optimizer(acc::AdamW{.lr = 0.05, .weight_decay = 0.1})
                                : model.optimizer(acc::Sgd{.lr = 0.2, .momentum = 0.5});
    optimizer.set_clip_norm(task.clips ? 3.0 : 0.0);
    std::optional<Companion> companion;
    if (layout.accompanied) {
      companion.emplace(runtime);
    }
    std::int64_t step = 0;
    if (!from.empty()) {
      net.micro_step(runtime.rank(), 0, 1.0F, false, false);  // must leave no trace
      optimizer.step();
      step = acc::test::step_of(runtime.load(from, model, optimizer));
    }
    for (; step < until; ++step) {
      for (int micro_step = 0; micro_step < task.micro_steps; ++micro_step) {
        const int number = static_cast<int>(step) * task.micro_steps + micro_step;
        const bool is_quiet = ((layout.quiet_steps >> static_cast<unsigned>(number)) & 1U) != 0;
        const auto guard = is_quiet ? model.no_sync() : nullptr;
        const bool fault = task.overflows && step == 1 && runtime.rank() == 1;
        net.micro_step(runtime.rank(), number, static_cast<float>(optimizer.loss_scale()), fault,
                       layout.evaluates);
        if (companion) {
          companion->micro_step(runtime.rank(), number);
        }
      }
      if (companion) {
        companion->step();
      }
      CHECK(optimizer.step().skipped == (task.overflows && step == 1));
    }
    if (!to.empty()) {
      runtime.save(to, model, optimizer, acc::test::at_step(step));
    }
    seen[static_cast<std::size_t>(runtime.rank())] = net.read();
    runtime.barrier();
  });
  return seen;
}

std::vector<Weights> train(const Task& task, const Layout& first, const Layout& second) {
  const acc::test::TemporaryFolder folder;
  const std::string checkpoint = folder.path() / "checkpoint";
  run(task, first, "", kSavedAfter, checkpoint);
  return run(task, second, checkpoint, kSteps, "");
}

}  // namespace

TEST_CASE("random combinations of settings give the weights of no_shard, across a checkpoint") {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    Draw draw(seed);
    const Task task = draw_task(draw);
    const Layout first = draw_layout(draw, task);
    const Layout second = draw_layout(draw, task);
    CAPTURE(seed);
    CAPTURE(task.words());
    CAPTURE(first.words());
    CAPTURE(second.words());
    std::vector<Weights> expected;
    std::vector<Weights> found;
    REQUIRE_NOTHROW(expected = train(task, {}, {}));
    REQUIRE_NOTHROW(found = train(task, first, second));
    // With 16 bits, gradients are rounded before they are sent and weights before use.
    const double bound = task.is_float32() ? 2e-6 : 0.02;
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      CAPTURE(rank);
      CHECK(acc::test::distance(expected[rank], found[rank]) <= bound);
    }
  }
}
