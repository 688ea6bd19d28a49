// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime.hpp"
#include "acc/settings/strategy.hpp"
#include "support/run_ranks.hpp"
#include "support/temporary_folder.hpp"
#include "support/weights.hpp"

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>

// The sharding engine on a GPU against itself on the CPU: same weights after a few steps, in every
// strategy, with every kind of process group, offloaded or not.
namespace {

using acc::DType;
using acc::settings::Device;
using acc::settings::DeviceCollectives;
using acc::settings::MixedPrecision;
using acc::settings::OffloadDevice;
using acc::settings::StateDictType;
using acc::settings::Strategy;
using acc::test::distance;
using acc::test::Job;
using acc::test::Weights;

float widened(std::uint16_t bits, DType dtype) {
  return dtype == DType::float16 ? __half2float(std::bit_cast<__half>(bits))
                                 : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Exact for values that are multiples of 1/64 below 2.
std::uint16_t narrowed(float value, DType dtype) {
  return dtype == DType::float16
             ? std::bit_cast<std::uint16_t>(__float2half_rn(value))
             : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

/// Reads and writes a program's arrays, in host or device memory, in the order of its stream.
class Access {
 public:
  Access(const acc::ComputeDevice& device, DType dtype)
      : on_gpu_(device.kind == Device::cuda),
        stream_(static_cast<cudaStream_t>(device.stream)),
        dtype_(dtype) {}

  std::vector<float> read(const void* from, std::size_t numel) const {
    std::vector<float> values(numel);
    if (dtype_ == DType::float32) {
      copy(values.data(), from, numel * sizeof(float));
      return values;
    }
    std::vector<std::uint16_t> raw(numel);
    copy(raw.data(), from, numel * sizeof(std::uint16_t));
    std::transform(raw.begin(), raw.end(), values.begin(),
                   [this](std::uint16_t bits) { return widened(bits, dtype_); });
    return values;
  }

  void write(void* to, const std::vector<float>& values) const {
    if (dtype_ == DType::float32) {
      copy(to, values.data(), values.size() * sizeof(float));
      return;
    }
    std::vector<std::uint16_t> raw(values.size());
    std::transform(values.begin(), values.end(), raw.begin(),
                   [this](float value) { return narrowed(value, dtype_); });
    copy(to, raw.data(), raw.size() * sizeof(std::uint16_t));
  }

 private:
  void copy(void* to, const void* from, std::size_t nbytes) const {
    if (!on_gpu_) {
      std::copy_n(static_cast<const std::byte*>(from), nbytes, static_cast<std::byte*>(to));
      return;
    }
    REQUIRE(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDefault, stream_) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess);
  }

  bool on_gpu_;
  cudaStream_t stream_;
  DType dtype_;
};

/// A root and three blocks with sizes that no rank count divides, one with a frozen part.
class Net {
 public:
  explicit Net(acc::Model& model) : root_(&model.root("net", "Net")) {
    head_ = root_->parameter("head", {37}, acc::uniform(-1.0F, 1.0F), {.weight_decay = false});
    for (int i = 0; i < 3; ++i) {
      Block block{&model.unit("net.block" + std::to_string(i), "Block"), {}, {}, 31 + 50 * i};
      block.weight = block.unit->parameter("weight", {block.numel}, acc::uniform(-1.0F, 1.0F));
      block.frozen = block.unit->parameter("frozen", {5}, acc::ones(), {.trainable = false});
      blocks_.push_back(block);
    }
  }

  /// Multiplies gradients by `scale`.
  void micro_step(const Access& access, int salt, float scale = 1.0F) {
    {
      auto whole = root_->forward();
      for (Block& block : blocks_) {
        auto use = block.unit->forward();
        CHECK(access.read(use.raw(block.frozen), 5)[4] == 1.0F);
      }
    }
    auto whole = root_->backward();
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      auto use = block->unit->backward();
      add_gradient(access, use, block->weight, block->numel, salt, scale);
    }
    add_gradient(access, whole, head_, 37, salt, scale);
  }

  Weights read(acc::Model& model, const Access& access) {
    const auto no_grad = model.no_grad();
    Weights all;
    auto whole = root_->forward();
    all["head"] = access.read(whole.raw(head_), 37);
    for (Block& block : blocks_) {
      auto use = block.unit->forward();
      all[block.unit->name()] =
          access.read(use.raw(block.weight), static_cast<std::size_t>(block.numel));
    }
    return all;
  }

 private:
  struct Block {
    acc::Unit* unit;
    acc::Parameter weight, frozen;
    int numel;
  };

  /// Multiples of 1/64 that depend on the sign of the weight, the element and `salt`.
  static void add_gradient(const Access& access, acc::BackwardUse& use, acc::Parameter parameter,
                           int numel, int salt, float scale) {
    const auto weights = access.read(use.raw(parameter), static_cast<std::size_t>(numel));
    const acc::RawGradient place = use.raw_grad(parameter);
    std::vector<float> gradient(weights.size());
    if (place.beta != 0.0F) {
      gradient = access.read(place.data, weights.size());
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const int step = static_cast<int>(i * 7 + static_cast<std::size_t>(salt) * 3) % 16;
      gradient[i] +=
          scale * (static_cast<float>(step) / 64.0F + (weights[i] > 0.0F ? 0.25F : -0.125F));
    }
    access.write(place.data, gradient);
  }

  acc::Unit* root_;
  acc::Parameter head_;
  std::vector<Block> blocks_;
};

/// For threads, which must not use doctest's macros.
void expect(bool condition) {
  if (!condition) {
    throw std::runtime_error("an expectation failed");
  }
}

const int kFourGpus = ::setenv("ACC_STANDIN_DEVICES", "4", 0);

/// NCCL allows one rank of a process per GPU.
bool nccl_joins(int ranks) {
  int gpus = 0;
  REQUIRE(cudaGetDeviceCount(&gpus) == cudaSuccess);
  return gpus >= ranks;
}

/// Choices of a program in addition to its settings.
struct Choices {
  DType dtype = DType::float32;
  bool no_sync = false;  ///< in all micro-steps except the last
  double clip_value = 0.0;
};

Weights train(const Job& job, const Choices& choices = {}) {
  Weights result;
  std::mutex mutex;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(7, {.dtype = choices.dtype});
    Net net(model);
    auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05, .weight_decay = 0.1});
    optimizer.set_clip_norm(0.5);
    optimizer.set_clip_value(choices.clip_value);
    const Access access(runtime.device(), model.compute_dtype());
    const int micro_steps = runtime.gradient_accumulation_steps();
    for (int step = 0; step < 3; ++step) {
      for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
        const bool defers = choices.no_sync && micro_step + 1 < micro_steps;
        const auto no_sync = defers ? model.no_sync() : nullptr;
        net.micro_step(access, settings.identity.rank * 5 + step + micro_step,
                       static_cast<float>(optimizer.loss_scale()));
      }
      CHECK(runtime.last_micro_step(model));
      CHECK_FALSE(optimizer.step().skipped);
    }
    Weights mine = net.read(model, access);
    runtime.barrier();
    const std::lock_guard lock(mutex);
    if (!result.empty() && mine != result) {
      throw std::runtime_error("ranks disagree about the weights");
    }
    result = std::move(mine);
  });
  return result;
}

struct Offload {
  const char* name;
  OffloadDevice optimizer, param;
};

constexpr Offload kOffloads[] = {{"nothing", OffloadDevice::none, OffloadDevice::none},
                                 {"the optimizer", OffloadDevice::cpu, OffloadDevice::none},
                                 {"parameters", OffloadDevice::none, OffloadDevice::cpu},
                                 {"both", OffloadDevice::cpu, OffloadDevice::cpu}};

struct Plan {
  Strategy strategy;
  int shard_size = 0;
  int hpz = 1;
  int reshard = 0;
  bool counted = false;  ///< DeepSpeed's counts, small enough to matter
};

std::vector<Plan> plans(int world) {
  std::vector<Plan> all = {{Strategy::no_shard},
                           {Strategy::shard_optimizer},
                           {Strategy::shard_grad_op},
                           {Strategy::full_shard}};
  if (world % 2 == 0) {
    all.push_back({Strategy::hybrid_shard, 2});
    all.push_back({Strategy::hybrid_shard_zero2, 2});
    all.push_back({Strategy::full_shard, 0, 2});
    all.push_back({Strategy::full_shard, 0, 1, 2});
    all.push_back({Strategy::full_shard, 0, 1, 0, true});
  }
  return all;
}

Job job_of(int world, const Plan& plan, MixedPrecision precision, int micro_steps) {
  Job job = acc::test::job_of(plan.strategy, world);
  job.sharding.shard_size = plan.shard_size;
  job.sharding.hpz_partition_size = plan.hpz;
  job.sharding.reshard_size = plan.reshard;
  if (plan.counted) {
    job.sharding.prefetch_bucket_size = 60;
    job.sharding.max_live_parameters = 200;
    job.sharding.max_reuse_distance = 50;
    job.sharding.param_persistence_threshold = 40;
    job.sharding.overlap_comm = false;
  }
  job.sharding.mixed_precision = precision;
  job.sharding.gradient_accumulation_steps = micro_steps;
  job.sharding.backward_prefetch = acc::settings::BackwardPrefetch::backward_pre;
  return job;
}

void check_offloads(Job job, double bound, DeviceCollectives collectives,
                    const Choices& choices = {}) {
  CAPTURE(job.world_size);
  CAPTURE(to_string(job.sharding.strategy));
  CAPTURE(job.sharding.hpz_partition_size);
  CAPTURE(to_string(job.sharding.mixed_precision));
  CAPTURE(job.sharding.gradient_accumulation_steps);
  CAPTURE(to_string(collectives));
  const Weights reference = train(job, choices);
  job.device = Device::cuda;
  job.device_collectives = collectives;
  for (const Offload& offload : kOffloads) {
    if (offload.param != OffloadDevice::none &&
        !acc::settings::switches(job.sharding.strategy).shard_parameters) {
      continue;
    }
    CAPTURE(offload.name);
    job.sharding.offload_optimizer = offload.optimizer;
    job.sharding.offload_param = offload.param;
    CHECK(distance(reference, train(job, choices)) <= bound);
  }
}

void check_all(int world, MixedPrecision precision, int micro_steps, double bound,
               DeviceCollectives collectives) {
  for (const Plan& plan : plans(world)) {
    check_offloads(job_of(world, plan, precision, micro_steps), bound, collectives);
  }
}

}  // namespace

TEST_CASE("a GPU gives the CPU's weights in every strategy: fp32, one rank and staged") {
  for (const int world : {1, 2, 4}) {
    check_all(world, MixedPrecision::no, 1, 2e-6, DeviceCollectives::staged);
  }
  check_all(2, MixedPrecision::no, 3, 2e-6, DeviceCollectives::staged);
}

// Gradients are exact in bfloat16, so their sums differ only by the rounding of the reduction.
// Weights are compared to one part in 256.
TEST_CASE("a GPU gives the CPU's weights in every strategy: bf16") {
  check_all(1, MixedPrecision::bf16, 2, 0.02, DeviceCollectives::staged);
  check_all(4, MixedPrecision::bf16, 1, 0.02, DeviceCollectives::staged);
}

TEST_CASE("a GPU gives the CPU's weights in every strategy: NCCL") {
  if (!nccl_joins(2)) {
    MESSAGE("left out: there are too few GPUs");
    return;
  }
  check_all(2, MixedPrecision::no, 1, 2e-6, DeviceCollectives::nccl);
  check_all(2, MixedPrecision::bf16, 3, 0.02, DeviceCollectives::nccl);
}

// NCCL's symmetric kernels and its gathers on copy engines need both buffers in windows.
TEST_CASE("gathers and reductions of a training read and write windows of NCCL only") {
  if (!nccl_joins(4) || std::getenv("ACC_CUDA_BACKEND") == nullptr) {
    MESSAGE("left out: needs the stand-in, which logs the path of each collective");
    return;
  }
  const acc::test::TemporaryFolder folder;
  int number = 0;
  const auto check = [&](Job job) {
    CAPTURE(to_string(job.sharding.strategy));
    CAPTURE(to_string(job.sharding.mixed_precision));
    CAPTURE(job.sharding.hpz_partition_size);
    CAPTURE(job.nccl.zero_sm);
    CAPTURE(job.nccl.split_share);
    const auto log = folder.path() / std::to_string(number++);
    ::setenv("ACC_STANDIN_NCCL_LOG", log.c_str(), 1);
    job.device = Device::cuda;
    job.device_collectives = DeviceCollectives::nccl;
    train(job);
    ::unsetenv("ACC_STANDIN_NCCL_LOG");
    int gathers = 0;
    int reductions = 0;
    std::ifstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      if (line == "all_gather 24 plain") {
        continue;  // what each rank has declared, compared once
      }
      if (line.starts_with("split")) {
        CHECK(line == (job.nccl.split_share ? "split shared" : "split own"));
      } else if (line.starts_with("all_gather")) {
        ++gathers;
        CHECK(line.ends_with(job.nccl.zero_sm ? " copy engine" : " symmetric kernel"));
      } else if (line.starts_with("reduce_scatter")) {
        ++reductions;
        CHECK(line.ends_with(" symmetric kernel"));
      }
    }
    CHECK(gathers > 0);
    CHECK(reductions > 0);
  };
  for (const auto precision : {MixedPrecision::no, MixedPrecision::bf16}) {
    for (const Plan& plan : plans(4)) {
      if (plan.strategy == Strategy::no_shard) {
        continue;  // all_reduce only
      }
      for (const Offload& offload : kOffloads) {
        if (offload.param != OffloadDevice::none &&
            !acc::settings::switches(plan.strategy).shard_parameters) {
          continue;
        }
        CAPTURE(offload.name);
        Job job = job_of(4, plan, precision, 2);
        job.sharding.offload_optimizer = offload.optimizer;
        job.sharding.offload_param = offload.param;
        check(job);
      }
    }
  }
  Job job = job_of(4, {Strategy::hybrid_shard, 2}, MixedPrecision::bf16, 1);
  job.nccl = {.zero_sm = true, .split_share = true};
  check(job);
}

TEST_CASE("hybrid strategies by NCCL sum the replicas behind each reduction of the last backward") {
  if (!nccl_joins(4)) {
    MESSAGE("left out: there are too few GPUs");
    return;
  }
  for (const Strategy strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_zero2}) {
    Job job = job_of(4, {strategy, 2}, MixedPrecision::bf16, 2);
    check_offloads(job, 0.02, DeviceCollectives::nccl);
    job.sharding.mixed_precision = MixedPrecision::no;
    check_offloads(job, 2e-6, DeviceCollectives::nccl);
    for (const Device device : {Device::cuda, Device::cpu}) {
      CAPTURE(to_string(strategy));
      CAPTURE(to_string(device));
      job.device = device;
      job.device_collectives = DeviceCollectives::nccl;
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model(7);
        Net net(model);
        auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05});
        const Access access(runtime.device(), model.compute_dtype());
        net.micro_step(access, 1);
        CHECK(model.traffic().all_reduce_calls == 0);
        net.micro_step(access, 2);
        const auto units = model.traffic().reduce_calls / 2;
        CHECK(units == 4);
        CHECK(model.traffic().all_reduce_calls == (device == Device::cuda ? units : 0));
        optimizer.step();
        CHECK(model.traffic().all_reduce_calls == units);
        runtime.barrier();
      });
    }
  }
}

// Gradients and their sums are exact in both 16-bit dtypes, and stochastic rounding uses a hash.
// The only difference from the CPU is the order in which the norm is summed, which may change a
// weight by one unit in the last place.
TEST_CASE("a GPU gives the CPU's weights: low precision, loss scale, no_sync, clipping by value") {
  struct Variant {
    const char* name;
    MixedPrecision precision;
    int micro_steps;
    double bound;
    Choices choices = {};
    bool stochastic = false;
  };
  const Variant variants[] = {
      {"no_sync", MixedPrecision::no, 2, 2e-6, {.no_sync = true}},
      {"no_sync in bf16", MixedPrecision::bf16, 2, 0.02, {.no_sync = true}},
      {"fp16, its loss scaled", MixedPrecision::fp16, 1, 0.002, {.clip_value = 0.2}},
      {"clipped by value", MixedPrecision::no, 2, 2e-6, {.clip_value = 0.2}},
      {"kept in bf16, by chance", MixedPrecision::no, 1, 0.02, {.dtype = DType::bfloat16}, true},
      {"kept in fp16, by chance", MixedPrecision::no, 1, 0.002, {.dtype = DType::float16}, true}};
  for (const Variant& variant : variants) {
    for (const Plan& plan : plans(2)) {
      CAPTURE(variant.name);
      Job job = job_of(2, plan, variant.precision, variant.micro_steps);
      job.sharding.stochastic_rounding = variant.stochastic;
      job.sharding.loss_scaling.static_scale = variant.precision == MixedPrecision::fp16 ? 16.0 : 0;
      const bool by_nccl =
          (plan.hpz > 1 || plan.strategy == Strategy::shard_grad_op) && nccl_joins(2);
      check_offloads(job, variant.bound,
                     by_nccl ? DeviceCollectives::nccl : DeviceCollectives::staged,
                     variant.choices);
    }
  }
}

TEST_CASE("every rank sees weights that were loaded while the first gathers were in flight") {
  const acc::test::TemporaryFolder folder;
  const std::string path = (folder.path() / "weights.safetensors").string();
  Weights saved;
  std::mutex mutex;
  acc::test::run_ranks(job_of(1, {Strategy::no_shard}, MixedPrecision::no, 1),
                       [&](const auto& settings, auto store) {
                         auto runtime = acc::Runtime::from_settings(settings, std::move(store));
                         auto model = runtime.model(1);
                         Net net(model);
                         model.export_weights(path);
                         saved = net.read(model, Access(runtime.device(), model.compute_dtype()));
                       });
  for (const Plan& plan : plans(2)) {
    CAPTURE(to_string(plan.strategy));
    CAPTURE(plan.hpz);
    Job job = job_of(2, plan, MixedPrecision::no, 1);
    job.device = Device::cuda;
    job.device_collectives = nccl_joins(2) ? DeviceCollectives::nccl : DeviceCollectives::staged;
    std::vector<Weights> seen;
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model(2);
      Net net(model);
      model.load_weights(path);
      Weights mine = net.read(model, Access(runtime.device(), model.compute_dtype()));
      runtime.barrier();
      const std::lock_guard lock(mutex);
      seen.push_back(std::move(mine));
    });
    CHECK(seen == std::vector<Weights>{saved, saved});
  }
}

TEST_CASE(
    "checkpoints of every format are saved from a GPU and loaded into one, offloaded or not") {
  const acc::test::TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  /// Loads `from` if it is given, runs step number `step`, and saves to `to` if that is given.
  const auto step_once = [](const Job& job, int step, const std::string& from,
                            const std::string& to) {
    Weights result;
    std::mutex mutex;
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model(from.empty() ? 7 : 8);
      Net net(model);
      auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05});
      if (!from.empty()) {
        runtime.load(from, model, optimizer);
      }
      const Access access(runtime.device(), model.compute_dtype());
      net.micro_step(access, step);  // equal on all ranks
      optimizer.step();
      if (!to.empty()) {
        runtime.save(to, model, optimizer);
      }
      Weights mine = net.read(model, access);
      runtime.barrier();
      const std::lock_guard lock(mutex);
      result = std::move(mine);
    });
    return result;
  };
  Job on_cpu = job_of(1, {Strategy::no_shard}, MixedPrecision::no, 1);
  step_once(on_cpu, 1, "", path);
  const Weights expected = step_once(on_cpu, 2, path, "");
  for (const auto type : {StateDictType::sharded, StateDictType::full, StateDictType::local}) {
    for (const Offload& offload : kOffloads) {
      CAPTURE(to_string(type));
      CAPTURE(offload.name);
      Job job = job_of(2, {Strategy::full_shard}, MixedPrecision::no, 1);
      job.device = Device::cuda;
      job.device_collectives = DeviceCollectives::staged;
      job.sharding.state_dict_type = type;
      job.sharding.offload_optimizer = offload.optimizer;
      job.sharding.offload_param = offload.param;
      const std::string other = path + "_gpu";
      step_once(job, 1, "", other);
      CHECK(distance(expected, step_once(on_cpu, 2, other, "")) <= 2e-6);
      CHECK(distance(expected, step_once(job, 2, path, "")) <= 2e-6);
    }
  }
}

TEST_CASE("the state dict of a GPU, in its memory or the host's, is complete when it is returned") {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
    for (const Offload& offload : kOffloads) {
      if (offload.param != OffloadDevice::none && strategy == Strategy::no_shard) {
        continue;
      }
      CAPTURE(to_string(strategy));
      CAPTURE(offload.name);
      Job job = job_of(2, {strategy}, MixedPrecision::no, 1);
      job.device = Device::cuda;
      job.device_collectives = DeviceCollectives::staged;
      job.sharding.offload_optimizer = offload.optimizer;
      job.sharding.offload_param = offload.param;
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model(7);
        Net net(model);
        auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05});
        net.micro_step(Access(runtime.device(), model.compute_dtype()), 1);
        optimizer.step();
        // Uses a stream that is not ordered with the program's.
        const auto taken = [&](bool to_cpu) {
          Weights all;
          model.state_dict({.rank0_only = false, .offload_to_cpu = to_cpu},
                           [&](const acc::FullTensor& tensor) {
                             auto& values = all[std::string(tensor.name)];
                             std::size_t numel = 1;
                             for (const std::int64_t size : tensor.shape) {
                               numel *= static_cast<std::size_t>(size);
                             }
                             values.resize(numel);
                             REQUIRE(cudaMemcpy(values.data(), tensor.data, numel * sizeof(float),
                                                cudaMemcpyDefault) == cudaSuccess);
                           });
          return all;
        };
        const Weights on_device = taken(false);
        CHECK(on_device == taken(true));
        CHECK(on_device.size() > 4);
        runtime.barrier();
      });
    }
  }
}

TEST_CASE("loading waits until the GPU has read the weights in host memory that it overwrites") {
  const acc::test::TemporaryFolder folder;
  const std::string path = (folder.path() / "weights.safetensors").string();
  Job job = job_of(1, {Strategy::full_shard}, MixedPrecision::no, 1);
  job.device = Device::cuda;
  job.sharding.offload_optimizer = OffloadDevice::cpu;
  job.sharding.offload_param = OffloadDevice::cpu;
  job.sharding.cpu_ram_efficient_loading = false;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    constexpr std::size_t kNumel = 64;
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    const auto declare = [](acc::Model& model) {
      acc::Unit& unit = model.unit("layer", "Layer");
      return std::pair(&unit, unit.parameter("weight", {kNumel}, acc::uniform(-1.0F, 1.0F)));
    };
    auto other = runtime.model(1);
    declare(other);
    other.export_weights(path);
    auto model = runtime.model(2);
    const auto [unit, weight] = declare(model);
    const auto no_grad = model.no_grad();
    const Access access(runtime.device(), DType::float32);
    const auto before = access.read(unit->forward().raw(weight), kNumel);
    void* seen = nullptr;
    REQUIRE(cudaMalloc(&seen, kNumel * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(seen, unit->forward().raw(weight), kNumel * sizeof(float),
                            cudaMemcpyDefault,
                            static_cast<cudaStream_t>(runtime.device().stream)) == cudaSuccess);
    model.load_weights(path);
    CHECK(access.read(seen, kNumel) == before);
    CHECK(access.read(unit->forward().raw(weight), kNumel) != before);
    CHECK(cudaFree(seen) == cudaSuccess);
  });
}

/// Number of host waits so far on the stand-in; nothing on a GPU.
std::optional<long> host_waits() {
  void* const found = ::dlsym(RTLD_DEFAULT, "acc_standin_host_waits");
  return found == nullptr ? std::nullopt : std::optional(reinterpret_cast<long (*)()>(found)());
}

TEST_CASE("a step by NCCL does not make the host wait for the GPU until its result is read") {
  if (!nccl_joins(2) || !host_waits()) {
    MESSAGE("left out: needs the stand-in, which counts the waits");
    return;
  }
  constexpr std::int64_t kNumel = 1000;
  for (const Strategy strategy :
       {Strategy::no_shard, Strategy::shard_optimizer, Strategy::full_shard}) {
    for (const bool limits : {true, false}) {
      CAPTURE(to_string(strategy));
      CAPTURE(limits);
      Job job = job_of(2, {strategy}, MixedPrecision::bf16, 1);
      job.device = Device::cuda;
      job.device_collectives = DeviceCollectives::nccl;
      job.sharding.limit_all_gathers = limits;
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model(7);
        std::vector<std::pair<acc::Unit*, acc::Parameter>> layers;
        for (int i = 0; i < 4; ++i) {
          auto& unit = model.unit("layer" + std::to_string(i), "Layer");
          layers.emplace_back(&unit, unit.parameter("weight", {kNumel}, acc::ones()));
        }
        auto optimizer = model.optimizer(acc::AdamW{.lr = 0.01});
        optimizer.set_clip_norm(0.5);
        const auto stream = static_cast<cudaStream_t>(runtime.device().stream);
        // 0x4040 is 3 in bfloat16.
        const auto step = [&] {
          for (auto& [unit, weight] : layers) {
            const auto use = unit->forward();
          }
          for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
            auto use = layer->first->backward();
            const acc::RawGradient place = use.raw_grad(layer->second);
            expect(cudaMemsetAsync(place.data, 0x40, kNumel * sizeof(std::uint16_t), stream) ==
                   cudaSuccess);
          }
          return optimizer.issue_step();
        };
        double* value = nullptr;
        expect(cudaMalloc(reinterpret_cast<void**>(&value), sizeof(double)) == cudaSuccess);
        expect(cudaMemsetAsync(value, 0, sizeof(double), stream) == cudaSuccess);
        {  // allocates what later steps use again
          const acc::IssuedStep first = step();
          const acc::IssuedStep second = step();
          expect(first.result().step == 1 && second.result().step == 2);
          expect(runtime.issue_mean(value).value() == 0.0);
        }
        std::vector<acc::IssuedStep> issued;
        runtime.barrier();
        const long before = *host_waits();
        runtime.barrier();
        issued.push_back(step());
        const acc::IssuedMean mean = runtime.issue_mean(value);
        issued.push_back(step());
        runtime.barrier();
        const long after = *host_waits();
        runtime.barrier();
        expect(after == before);
        const double norm = std::sqrt(static_cast<double>(kNumel * layers.size())) * 3.0;
        for (const acc::IssuedStep& each : issued) {
          expect(std::abs(each.result().grad_norm - norm) < 1e-6 * norm);
          expect(std::abs(each.result().clip_coefficient - 0.5 / (norm + 1e-6)) < 1e-9);
        }
        expect(issued[1].result().step == 4);
        expect(mean.value() == 0.0);
        expect(*host_waits() > before);
        expect(cudaFree(value) == cudaSuccess);
        runtime.barrier();
      });
    }
  }
}

TEST_CASE("activation_checkpointing_offload: what a program keeps is in host memory") {
  constexpr std::int64_t kNumel = 4096;
  constexpr std::int64_t kNbytes = kNumel * 4;
  for (const bool offload : {false, true}) {
    CAPTURE(offload);
    Job job = job_of(1, {Strategy::no_shard}, MixedPrecision::no, 1);
    job.device = Device::cuda;
    job.sharding.activation_checkpointing_offload = offload;
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model();
      auto& unit = model.unit("layer", "Layer");
      const auto weight = unit.parameter("weight", {kNumel}, acc::ones());
      const auto guard = model.no_grad();
      const auto use = unit.forward();
      const std::int64_t before = model.memory().pinned_bytes;
      auto kept = runtime.keep(use.raw(weight), kNbytes);
      CHECK((model.memory().pinned_bytes - before >= kNbytes) == offload);
      CHECK(Access(runtime.device(), DType::float32).read(kept.restore(), kNumel)[kNumel - 1] ==
            1.0F);
    });
  }
}

TEST_CASE("what a GPU cannot offload is refused by name") {
  Job job = job_of(1, {Strategy::no_shard}, MixedPrecision::no, 1);
  job.device = Device::cuda;
  job.sharding.offload_param = OffloadDevice::cpu;
  CHECK_THROWS_WITH_AS(train(job), doctest::Contains("offload of parameters"), acc::Error);
}

TEST_CASE("16-bit parameters are not returned as floats") {
  Job job = job_of(1, {Strategy::full_shard}, MixedPrecision::bf16, 1);
  job.device = Device::cuda;
  acc::test::run_ranks(job, [](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model();
    auto& unit = model.unit("layer", "Layer");
    const auto weight = unit.parameter("weight", {4}, acc::ones());
    CHECK(model.compute_dtype() == DType::bfloat16);
    auto use = unit.forward();
    CHECK_THROWS_WITH_AS((void)use[weight],
                         doctest::Contains("unit 'layer' has a parameter in bfloat16"), acc::Error);
    CHECK(Access(runtime.device(), DType::bfloat16).read(use.raw(weight), 4)[3] == 1.0F);
  });
}
