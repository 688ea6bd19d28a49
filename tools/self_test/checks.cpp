// SPDX-License-Identifier: Apache-2.0
#include "self_test/checks.hpp"

#include "self_test/net.hpp"
#include "self_test/parameter_memory.hpp"

#include <acc/base/error.hpp>
#include <acc/base/temporary_folder.hpp>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

namespace self_test {
namespace {

constexpr std::uint64_t kSeed = 5;
constexpr int kSteps = 6;
constexpr acc::AdamW kAdamW = {.lr = 1e-2};
// A prime number, so that no number of ranks divides it. The values repeat after kPeriod elements,
// so that all of them are exact in bf16 too.
constexpr std::int64_t kCounted = 1009;
constexpr std::int64_t kPeriod = 128;

[[noreturn]] void fail(const std::string& what) {
  throw acc::Error(acc::Errc::internal, "self-test: " + what);
}

bool is_16_bit(const acc::Runtime& runtime) {
  return runtime.settings().sharding.is_mixed();
}

/// Compares element by element with a relative and absolute tolerance. The negated comparison also
/// refuses NaN.
void expect_near(const std::string& what, std::span<const float> found,
                 std::span<const float> expected, float tolerance) {
  if (found.size() != expected.size()) {
    fail(what + ": " + std::to_string(found.size()) + " values, expected " +
         std::to_string(expected.size()));
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!(std::abs(found[i] - expected[i]) <= tolerance * (1.0F + std::abs(expected[i])))) {
      fail(what + ": element " + std::to_string(i) + " is " + std::to_string(found[i]) +
           ", expected " + std::to_string(expected[i]));
    }
  }
}

/// A model of one unit, in which element i has the value i modulo kPeriod.
struct Counted {
  explicit Counted(acc::Runtime& runtime)
      : model(runtime.model(kSeed)),
        unit(model.unit("counted", "SelfTestLayer")),
        parameter(unit.parameter("values", {kCounted},
                                 [](std::uint64_t, std::int64_t offset, std::span<float> out) {
                                   for (float& value : out) {
                                     value = static_cast<float>(offset++ % kPeriod);
                                   }
                                 },
                                 {.weight_decay = false})),
        memory(parameter_memory(runtime, model)) {}

  [[nodiscard]] std::vector<float> read() {
    const auto guard = model.no_grad();
    const auto use = unit.forward();
    return memory->read(use.raw(parameter), kCounted);
  }

  acc::Model model;
  acc::Unit& unit;
  acc::Parameter parameter;
  std::unique_ptr<ParameterMemory> memory;
};

std::vector<float> counted_values() {
  std::vector<float> values;
  for (std::int64_t i = 0; i < kCounted; ++i) {
    values.push_back(static_cast<float>(i % kPeriod));
  }
  return values;
}

/// Trains one step of `parts` micro-steps, whose samples are numbered from `first`. Returns their
/// mean loss.
double train_step(Net& net, acc::Optimizer& optimizer, int first, int parts) {
  double loss = 0.0;
  for (int part = first; part < first + parts; ++part) {
    loss += net.micro_step(make_samples(part)) / parts;
  }
  optimizer.step();
  return loss;
}

int parts_of(const acc::Runtime& runtime) {
  return runtime.gradient_accumulation_steps();
}

/// Returns a runtime with the same settings on a single rank, without sharding. It trains on the
/// samples of all ranks, in more micro-steps.
acc::Runtime unsharded(const acc::Runtime& runtime) {
  acc::settings::RuntimeSettings settings = runtime.settings();
  settings.identity = {};
  settings.identity.local_rank = runtime.local_rank();
  auto& sharding = settings.sharding;
  sharding.strategy = acc::settings::Strategy::no_shard;
  sharding.shard_size = 0;
  sharding.hpz_partition_size = 1;
  sharding.reshard_size = 0;
  sharding.offload_param = acc::settings::OffloadDevice::none;
  sharding.offload_optimizer = acc::settings::OffloadDevice::none;
  sharding.gradient_accumulation_steps *= runtime.world_size();
  settings.share_gpus = true;
  settings.trace.clear();
  return acc::Runtime::from_settings(settings);
}

/// A temporary folder whose name all ranks know. Rank 0 creates and removes it.
class SharedFolder {
 public:
  explicit SharedFolder(acc::Runtime& runtime) : owner_(runtime.rank() == 0) {
    const std::vector<double> mine = {static_cast<double>(::getpid()),
                                      static_cast<double>(std::random_device{}())};
    const std::vector<double> all = runtime.all_gather(mine);
    const char* named = std::getenv("TMPDIR");
    path_ = std::filesystem::path(
                named != nullptr && *named != '\0' ? named : acc::default_temporary_folder()) /
            ("acc_self_test_" + std::to_string(static_cast<long>(all[0])) + "_" +
             std::to_string(static_cast<long>(all[1])));
    if (owner_) {
      std::filesystem::create_directory(path_);
    }
    runtime.barrier();
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  ~SharedFolder() {
    std::error_code ignored;
    if (owner_) {
      std::filesystem::remove_all(path_, ignored);
    }
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  bool owner_;
  std::filesystem::path path_;
};

}  // namespace

void check_ranks(acc::Runtime& runtime) {
  const auto size = static_cast<std::size_t>(runtime.world_size());
  const double mine = runtime.rank();
  const std::vector<double> all = runtime.all_gather(std::span(&mine, 1));
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (all.size() != size || all[rank] != static_cast<double>(rank)) {
      fail("all_gather of the ranks: rank " + std::to_string(rank) + "'s value is wrong");
    }
  }
  const double mean = runtime.mean(mine);
  if (mean != static_cast<double>(size - 1) / 2.0) {
    fail("mean of the ranks is " + std::to_string(mean));
  }
  runtime.barrier();
}

void check_gather(acc::Runtime& runtime) {
  Counted counted(runtime);
  expect_near("gathered weights", counted.read(), counted_values(), 0.0F);
}

// Rank r contributes (r + 1) * (i % 4) to element i, so the mean gradient is (world_size + 1) / 2 *
// (i % 4). One SGD step with learning rate 1 subtracts it from the weights.
void check_reduction(acc::Runtime& runtime) {
  Counted counted(runtime);
  acc::Optimizer optimizer = counted.model.optimizer(acc::Sgd{.lr = 1.0});
  optimizer.set_clip_norm(0.0);
  const float mine = static_cast<float>(runtime.rank() + 1);
  for (int micro = 0; micro < runtime.gradient_accumulation_steps(); ++micro) {
    { const auto use = counted.unit.forward(); }
    auto use = counted.unit.backward();
    std::vector<float> gradient;
    for (std::int64_t i = 0; i < kCounted; ++i) {
      gradient.push_back(mine * static_cast<float>(i % 4));
    }
    counted.memory->add(use.raw_grad_to_add(counted.parameter), gradient);
  }
  optimizer.step();
  std::vector<float> expected = counted_values();
  const float mean = static_cast<float>(runtime.world_size() + 1) / 2.0F;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] -= mean * static_cast<float>(i % 4);
  }
  expect_near("weights after a step along the mean gradient", counted.read(), expected,
              is_16_bit(runtime) ? 1e-2F : 1e-6F);
}

// Every rank also trains the same model alone on all samples, and compares losses and weights.
void check_training(acc::Runtime& runtime) {
  Net net(runtime, runtime.model(kSeed));
  acc::Optimizer optimizer = acc::Model(net.model()).optimizer(kAdamW);
  acc::Runtime alone = unsharded(runtime);
  Net whole(alone, alone.model(kSeed));
  acc::Optimizer whole_optimizer = acc::Model(whole.model()).optimizer(kAdamW);

  const int parts = parts_of(runtime);
  const float tolerance = is_16_bit(runtime) ? 5e-2F : 1e-4F;
  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < kSteps; ++step) {
    last = runtime.mean(train_step(net, optimizer, runtime.rank() * parts, parts));
    first = step == 0 ? last : first;
    const std::vector<double> losses = runtime.all_gather(std::span(&last, 1));
    if (std::ranges::any_of(losses, [&](double loss) { return loss != losses.front(); })) {
      fail("step " + std::to_string(step + 1) + ": ranks see different losses");
    }
    const double expected = train_step(whole, whole_optimizer, 0, parts * runtime.world_size());
    const auto found = static_cast<float>(last);
    const auto wanted = static_cast<float>(expected);
    expect_near("loss of step " + std::to_string(step + 1), {&found, 1}, {&wanted, 1}, tolerance);
  }
  if (!(last < first)) {
    fail("the loss does not fall: " + std::to_string(first) + " -> " + std::to_string(last));
  }
  expect_near("weights next to unsharded ones", net.weights(), whole.weights(), tolerance);
}

// Saves after one step, loads into a model with other initial weights, and makes one more step with
// both. Their weights must then be bitwise equal.
void check_checkpoint(acc::Runtime& runtime) {
  const SharedFolder folder(runtime);
  const std::string path = folder.path() / "checkpoint";
  const int parts = parts_of(runtime);
  const int mine = runtime.rank() * parts;

  Net net(runtime, runtime.model(kSeed));
  acc::Model model = net.model();
  acc::Optimizer optimizer = model.optimizer(kAdamW);
  train_step(net, optimizer, mine, parts);
  const acc::ProgramState program = {{"step", std::int64_t{1}}};
  runtime.save(path, model, optimizer, {.program = program, .of_rank = {}});

  Net other(runtime, runtime.model(kSeed + 1));
  acc::Model other_model = other.model();
  acc::Optimizer other_optimizer = other_model.optimizer(kAdamW);
  if (runtime.load(path, other_model, other_optimizer).program != program) {
    fail("the loaded checkpoint has another step number");
  }
  train_step(net, optimizer, mine, parts);
  train_step(other, other_optimizer, mine, parts);
  expect_near("weights after resuming from a checkpoint", other.weights(), net.weights(), 0.0F);
  runtime.barrier();
}

}  // namespace self_test
