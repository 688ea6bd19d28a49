// SPDX-License-Identifier: Apache-2.0
// acclaunch estimate-memory: prints three tables for a model: Accelerate's estimate, the memory
// that the acclaunch runtime needs per rank (memory_model.hpp), and DeepSpeed's estimate.
#include "acc/base/error.hpp"
#include "acc/base/optimizer_sizes.hpp"
#include "acc/settings/strategy.hpp"
#include "commands/commands.hpp"
#include "commands/estimate_memory/memory_model.hpp"
#include "commands/estimate_memory/model_size.hpp"
#include "commands/options.hpp"
#include "commands/text_table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace acc::launcher::commands {
namespace {

using settings::Strategy;

constexpr int kUsualLocal = 8;  ///< GPUs per machine in most clusters

struct EstimateOptions {
  std::string source;
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  int num_processes = 1;
  int num_local = 0;  ///< 0: not given
  std::string optimizer = "adamw";
  std::string mixed_precision = "no";
  std::string offload = "any";
  int layers = 32;
  bool states_8bit = false;
  bool cpu = false;
  bool cpu_widens = false;
  bool low_precision = false;
  bool no_sync = false;
  bool save_async = false;
  int memory_checkpoint_every = 0;
  std::string nvme = "none";
};

EstimateOptions read_estimate_options(std::span<const std::string> arguments) {
  EstimateOptions options;
  OptionParser parser(
      "Estimates the memory that a model and its training need, without activations.",
      "acclaunch estimate-memory");
  parser
      .add_option("source", options.source,
                  "safetensors file or index, config.json, a folder with one of these, or the "
                  "number of parameters, such as 7B")
      .required();
  parser.add_option("--dtypes", options.dtypes, "dtypes of the first table")
      .check_member({"float32", "float16", "int8", "int4"});
  parser.add_option("--num_processes", options.num_processes, "number of ranks on all machines")
      .check_range(1, 1'000'000);
  parser
      .add_option("--num_local", options.num_local,
                  "number of ranks per machine; default: 8, or all ranks if not a multiple of 8")
      .check_range(1, 1'000'000);
  std::vector<std::string> optimizers;
  optimizers.reserve(std::size(kOptimizerRules));
  for (const OptimizerRule& rule : kOptimizerRules) {
    optimizers.emplace_back(rule.name);
  }
  parser
      .add_option("--optimizer", options.optimizer,
                  "optimizer; Muon, SOAP, Shampoo: of the units' matrices, and AdamW of the other "
                  "parameters")
      .check_member(optimizers);
  parser.add_flag("--states_8bit", options.states_8bit,
                  "keep the states of the optimizer in 8 bits");
  parser
      .add_option("--mixed_precision", options.mixed_precision,
                  "mixed precision of the training: no or bf16")
      .check_member({"no", "bf16"});
  parser
      .add_option("--offload", options.offload,
                  "offload to host memory: none, optimizer or all; default: any (show each)")
      .check_member({"none", "optimizer", "all", "any"});
  parser
      .add_option("--layers", options.layers,
                  "number of equal layers, if the model is given as a number of parameters")
      .check_range(1, 100'000);
  const Option cpu =
      parser.add_flag("--cpu", options.cpu, "train on the CPU, with all workers on one machine");
  parser
      .add_flag("--cpu_widens", options.cpu_widens,
                "the CPU computes in fp32 with 16-bit weights (train_gpt without AVX512-BF16)")
      .needs(cpu);
  parser.add_flag("--low_precision", options.low_precision,
                  "load and train the weights in 16 bits, without mixed precision");
  parser.add_flag("--no_sync", options.no_sync,
                  "accumulate gradients over micro-steps without reducing them");
  parser.add_flag("--save_async", options.save_async,
                  "write checkpoints beside the training (save_async)");
  parser
      .add_option("--memory_checkpoint_every", options.memory_checkpoint_every,
                  "steps between snapshots in memory; 0: none")
      .check_range(0, 1'000'000'000);
  parser
      .add_option("--nvme", options.nvme,
                  "offload to NVMe: none, optimizer, or all, which "
                  "includes the weights; needs --cpu")
      .check_member({"none", "optimizer", "all"})
      .needs(cpu);
  parser.parse(arguments);
  if (options.low_precision && options.mixed_precision != "no") {
    throw Error(Errc::invalid_argument,
                "--low_precision excludes mixed precision; remove --mixed_precision " +
                    options.mixed_precision);
  }
  if (options.states_8bit &&
      find_optimizer_rule(options.optimizer)->coefficient(kStates8Bit) == nullptr) {
    throw Error(Errc::invalid_argument,
                "--states_8bit: the states of " + options.optimizer + " cannot have 8 bits");
  }
  if (options.num_local == 0) {
    const bool usual = !options.cpu && options.num_processes % kUsualLocal == 0;
    options.num_local = usual ? kUsualLocal : options.num_processes;
  }
  if (options.num_processes % options.num_local != 0) {
    throw Error(Errc::invalid_argument, "--num_processes " + std::to_string(options.num_processes) +
                                            " must be a multiple of --num_local " +
                                            std::to_string(options.num_local) +
                                            ", the ranks of one machine");
  }
  if (options.cpu && options.num_local != options.num_processes) {
    throw Error(Errc::invalid_argument,
                "--cpu supports only workers on one machine; remove --num_local");
  }
  return options;
}

/// Formats a size like Accelerate's table: "1.23 GiB".
std::string in_units(double nbytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (nbytes >= 1024.0 && unit + 1 < kUnits.size()) {
    nbytes /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", nbytes, kUnits[unit]);
  return text.data();
}

using Row = std::vector<std::string>;

constexpr std::string_view kAlignment = "<>";

/// Returns Accelerate's table (accelerate/commands/estimate.py). The training column is the sum of
/// weights, gradients and Adam's two moments in float32, and half of that for float16.
std::string size_table(const ModelSize& model, const std::vector<std::string>& dtypes) {
  std::vector<Row> rows = {{"dtype", "largest layer", "total size", "training with Adam"}};
  const double total = 4.0 * static_cast<double>(model.numel());
  const double layer = 4.0 * static_cast<double>(model.largest_part());
  for (const std::string& dtype : dtypes) {
    const double share = dtype == "float32"   ? 1.0
                         : dtype == "float16" ? 2.0
                         : dtype == "int8"    ? 4.0
                                              : 8.0;
    const std::string training = share > 2.0 ? "N/A" : in_units(4.0 * total / share);
    rows.push_back({dtype, in_units(layer / share), in_units(total / share), training});
  }
  return text_table(rows, kAlignment);
}

/// A strategy with the defaults of its front end. DeepSpeed sets overlap_comm only for stage 3,
/// which also keeps gathered parameters that are used again within a billion elements
/// (stage3_max_reuse_distance).
struct StrategyName {
  Strategy strategy;
  std::string_view name;
  bool overlaps = true;
  std::int64_t keeps = 0;
  bool offloads_weights = true;
};
constexpr std::array kStrategies = {
    StrategyName{Strategy::no_shard, "ZeRO 0, NO_SHARD", true, 0, false},
    StrategyName{Strategy::shard_optimizer, "ZeRO 1", true, 0, false},
    StrategyName{Strategy::shard_grad_op, "ZeRO 2", false, 0, false},
    StrategyName{Strategy::shard_grad_op, "SHARD_GRAD_OP"},
    StrategyName{Strategy::full_shard, "ZeRO 3", true, 1'000'000'000},
    StrategyName{Strategy::full_shard, "FULL_SHARD"},
    StrategyName{Strategy::hybrid_shard, "HYBRID_SHARD"},
    StrategyName{Strategy::hybrid_shard_zero2, "HYBRID_SHARD_ZERO2"}};

struct OffloadName {
  Offload offload;
  std::string_view name;
};
constexpr std::array kOffloads = {OffloadName{Offload::none, "none"},
                                  OffloadName{Offload::optimizer, "optimizer"},
                                  OffloadName{Offload::all, "all"}};

/// True if the row is to be shown. Weights can only be offloaded if they are sharded, with
/// DeepSpeed only in stage 3; hybrid strategies need more than one machine; matrices are updated by
/// the CPU.
bool makes_sense(const EstimateOptions& options, const StrategyName& row,
                 const OffloadName& offload) {
  const bool hybrid = settings::switches(row.strategy).replicate;
  return (!hybrid || options.num_local < options.num_processes) &&
         (offload.offload != Offload::all || row.offloads_weights) &&
         (options.nvme != "all" || row.offloads_weights) &&
         (offload.offload == Offload::none || !options.cpu) &&
         (offload.offload != Offload::none || options.cpu ||
          !find_optimizer_rule(options.optimizer)->has_matrices()) &&
         (options.offload == "any" || options.offload == offload.name);
}

/// The sum of `of` each of the units' matrices.
template <typename Of>
std::int64_t sum_over_matrices(const ModelSize& model, const Of& of) {
  std::int64_t sum = 0;
  for (const ModelPart& part : model.parts) {
    for (const MatrixCount& each : part.matrices) {
      const std::int64_t count = part.unit ? counted_product(part.count, each.count) : 0;
      sum = counted_sum(sum, counted_product(count, of(each.rows, each.columns)));
    }
  }
  return sum;
}

/// Elements of the states that lie on the owners of the units' matrices, of all ranks. Those of the
/// root's parameters, sums over rows and columns of Adafactor, are too small to count.
std::int64_t owned_numel(const ModelSize& model, const OptimizerRule& rule) {
  if (!model.knows_matrices && rule.coefficient(kLargestSide) != nullptr) {
    throw Error(Errc::not_supported,
                "--optimizer " + std::string(rule.name) +
                    ": its states have the sides of matrices, which a number of parameters does "
                    "not tell; give a config.json or a safetensors file");
  }
  const std::int64_t sum = sum_over_matrices(model, [&](std::int64_t rows, std::int64_t columns) {
    return usual_owned_numel(rule, {rows, columns});
  });
  if (sum > kMostNumel) {
    throw Error(Errc::config, model.name + ": the states of --optimizer " + std::string(rule.name) +
                                  " have more than " + std::to_string(kMostNumel) + " elements");
  }
  return sum;
}

/// Elements of the units' matrices. Of a model of which only their number is known, all elements.
std::int64_t matrix_numel(const ModelSize& model) {
  return model.knows_matrices
             ? sum_over_matrices(
                   model, [](std::int64_t rows, std::int64_t columns) { return rows * columns; })
             : model.numel() - model.root();
}

/// Returns acclaunch's own table: one row per strategy and offload.
std::string rank_table(const ModelSize& model, const EstimateOptions& options) {
  // Units have matrices and other parameters. Embeddings and the last layer are updated as these.
  const OptimizerRule& rule = *find_optimizer_rule(options.optimizer);
  const auto moments = static_cast<int>(usual_arrays(rule, RuleScope::all));
  const auto root_moments = static_cast<int>(usual_arrays(rule, RuleScope::others));
  TrainingSize size{
      .numel = model.numel(),
      .largest_unit = model.largest_unit(),
      .root = model.root(),
      .num_processes = options.num_processes,
      .num_local = options.num_local,
      .sixteen_bit = options.mixed_precision != "no",
      .low_precision = options.low_precision,
      .moments = moments,
      .more_root_moments = root_moments - moments,
      .absent_moments = moments - static_cast<int>(usual_arrays(rule, RuleScope::matrices)),
      .matrices = matrix_numel(model),
      .owned = owned_numel(model, rule),
      .wholes = !rule.has_matrices()     ? 0
                : rule.has_wholes_only() ? model.numel()
                                         : model.numel() - model.root(),
      .states_8bit = options.states_8bit,
      .on_cpu = options.cpu,
      .widens = options.cpu_widens,
      .no_sync = options.no_sync,
      .async_saves = options.save_async,
      .memory_checkpoints = options.memory_checkpoint_every > 0,
      .nvme = options.nvme == "all"         ? Offload::all
              : options.nvme == "optimizer" ? Offload::optimizer
                                            : Offload::none};
  const bool has_snapshots = size.async_saves || size.memory_checkpoints;
  std::vector<Row> rows = {
      {"strategy", "offload", "parameters", "gradients", "optimizer", "gathered", "buffers"}};
  if (has_snapshots) {
    rows.front().emplace_back("snapshot");
  }
  const bool in_files = size.nvme != Offload::none;
  if (in_files) {
    rows.front().emplace_back("nvme buffers");
  }
  rows.front().insert(rows.front().end(), {"device", "host"});
  if (in_files) {
    rows.front().emplace_back("on nvme");
  }
  for (const StrategyName& each : kStrategies) {
    size.overlaps = each.overlaps;
    size.keeps = each.keeps;
    for (const OffloadName& offload : kOffloads) {
      if (makes_sense(options, each, offload)) {
        const RankMemory memory = rank_memory(size, each.strategy, offload.offload);
        Row row = {std::string(each.name), std::string(offload.name)};
        std::vector<std::int64_t> parts = {memory.parameters, memory.gradients, memory.optimizer,
                                           memory.gathered, memory.gradient_buffers};
        if (has_snapshots) {
          parts.push_back(memory.snapshot);
        }
        if (in_files) {
          parts.push_back(memory.nvme_buffers);
        }
        parts.insert(parts.end(), {memory.device, memory.host});
        if (in_files) {
          parts.push_back(memory.nvme);
        }
        for (const std::int64_t nbytes : parts) {
          row.push_back(in_units(static_cast<double>(nbytes)));
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return rows.size() == 1 ? "no strategy supports this offload with these options\n"
                          : text_table(rows, kAlignment);
}

/// Returns DeepSpeed's own estimate, which exists only for mixed precision with Adam.
std::string deepspeed_table(const ModelSize& model, const EstimateOptions& options) {
  const DeepSpeedSize size{.numel = model.numel(),
                           .largest_layer = model.largest_part(),
                           .gpus_per_machine = options.num_local,
                           .num_machines = options.num_processes / options.num_local};
  std::vector<Row> rows = {{"strategy", "offload", "per GPU", "host memory per machine"}};
  const auto add = [&](const char* name, const OffloadName& offload,
                       const DeepSpeedMemory& memory) {
    if (options.offload == "any" || options.offload == offload.name) {
      rows.push_back({name, std::string(offload.name), in_units(static_cast<double>(memory.device)),
                      in_units(memory.host)});
    }
  };
  for (const OffloadName& offload : kOffloads) {
    if (offload.offload != Offload::all) {
      add("ZeRO 2", offload, deepspeed_zero2(size, offload.offload));
    }
  }
  for (const OffloadName& offload : kOffloads) {
    add("ZeRO 3", offload, deepspeed_zero3(size, offload.offload));
  }
  return text_table(rows, kAlignment);
}

std::string count_of(std::int64_t numel) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%lld (%.2f M)", static_cast<long long>(numel),
                static_cast<double>(numel) * 1e-6);
  return text.data();
}

}  // namespace

int estimate_memory_command(std::span<const std::string> arguments) {
  const EstimateOptions options = read_estimate_options(arguments);
  const ModelSize model = size_of_source(options.source, options.layers);
  std::string text =
      model.name + ": " + count_of(model.numel()) + " parameters; largest unit " +
      count_of(model.largest_unit()) + ", outside of units " + count_of(model.root()) +
      "\n\nAccelerate's estimate (accelerate estimate-memory), one process:\n\n" +
      size_table(model, options.dtypes) +
      "\nacclaunch's estimate for its runtime, per rank: " + std::to_string(options.num_processes) +
      " rank(s), " + std::to_string(options.num_local) + " per machine, mixed precision " +
      options.mixed_precision + (options.low_precision ? ", low precision, " : ", ") +
      options.optimizer + ", without activations:\n\n" + rank_table(model, options);
  if (!options.cpu) {
    text +=
        "\nDeepSpeed's estimate (estimate_zero2_, estimate_zero3_model_states_mem_needs: mixed "
        "precision,\nAdam, 1.5 times the host memory for buffers), for Python programs with "
        "DeepSpeed:\n\n" +
        deepspeed_table(model, options);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
