// SPDX-License-Identifier: Apache-2.0
// Generates docs/environment.md and docs/configuration.md from the settings table, so that these
// pages are always complete. The commands that print them are not listed in --help.
#include "acc/launcher/explain.hpp"
#include "acc/launcher/front_end.hpp"
#include "acc/plugins/deepspeed_json.hpp"
#include "commands/commands.hpp"
#include "host/own_variables.hpp"

#include <cstdio>

namespace acc::launcher {
namespace {

using plugins::SettingRow;

/// Formats a table cell as code; '|' must be escaped in a Markdown table.
std::string code(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  }
  return text.empty() ? "" : "`" + escaped + "`";
}

std::string export_of(const SettingRow& row) {
  switch (row.exported) {
    case plugins::Export::always: return "always";
    case plugins::Export::given: return "when given";
    case plugins::Export::when_true: return "when true";
    case plugins::Export::never: break;
  }
  return "";
}

std::string own_variables_table() {
  std::string text;
  for (const auto& [name, use] : host::own_variables()) {
    text += "| " + code(name) + " | " + std::string(use) + " |\n";
  }
  return text;
}

std::string manager_variables_table() {
  std::string text;
  for (const auto& [manager, names] : host::manager_variables()) {
    std::string cell;
    for (const std::string_view name : split(names, ' ')) {
      cell += (cell.empty() ? "" : " ") + code(name);
    }
    text += "| " + std::string(manager) + " | " + cell + " |\n";
  }
  return text;
}

}  // namespace

std::string environment_document() {
  std::string text =
      "# Environment of the workers\n\n"
      "Generated from the settings table by `acclaunch environment-table`; a test compares this "
      "page with its\noutput.\n\n"
      "The launcher passes each setting to the workers in an environment variable: under "
      "Accelerate's name if it\n"
      "has one, otherwise as `ACC_…`. The `ACC_…` variable is also used for a value from a "
      "DeepSpeed JSON file and,\n"
      "outside of DeepSpeed mode, for gradient accumulation and clipping. A worker reads `ACC_…` "
      "first. `ACC_MODE`\n"
      "is `none`, `fsdp` or `deepspeed`; `ACC_DEVICE` is `cpu` or `cuda`. A worker also gets "
      "torchrun's variables\n"
      "(RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, TORCHELASTIC_*, …), OMP_NUM_THREADS and, with "
      "`--gpu_ids`,\n"
      "CUDA_VISIBLE_DEVICES.\n\n"
      "- `ACC_LOCAL_WORLD_SIZES` lists the number of ranks per machine if it differs: `1,2`.\n"
      "- `ACC_REPORT_FD` is the number of a descriptor for lines of JSON, if the job can be "
      "watched:\n"
      "  [what programs report](watching.md#what-programs-report).\n"
      "- `ACC_FLIGHT_RECORD` names the file in which the runtime records its last collectives for\n"
      "  [the report](report.md).\n"
      "- `ACC_JOB_SECRET` contains 128 random bits that all workers of a rendezvous round share:\n"
      "  [who is trusted](architecture.md#trust).\n"
      "- `ACC_MAIN_ADDRESS` is the address of machine 0, if MASTER_ADDR leads there through a "
      "tunnel\n"
      "  ([security](jobs.md#security)).\n"
      "- `ACC_SETTING_SOURCES` lists where the launcher found each value (`KEY=config.yaml:12` or\n"
      "  `KEY=--flag`, separated by `;`), so that a worker's error message can name the place.\n\n"
      "The runtime reads the following variables. The launcher passes them on unchanged.\n\n"
      "| variable | meaning | default |\n|---|---|---|\n"
      "| `ACC_COLLECTIVE_TIMEOUT` | timeout of a collective, in seconds, while its peers are alive "
      "| 1800 |\n"
      "| `ACC_SHM_GATHER` | `share`: ranks of one host share the memory of gathered weights; "
      "`copy`: each rank has its own copy, as between hosts | `share` |\n"
      "| `ACC_COLLECTIVES` | transport for GPU memory: `nccl`, `staged` (through host memory) or "
      "`auto` | `auto` |\n"
      "| `ACC_NCCL_ZERO_SM` | `1`: gathers by NCCL run on copy engines and use no multiprocessor, "
      "where NCCL, from 2.28 on, can do that (`NCCL_CTA_POLICY_ZERO`) | `0` |\n"
      "| `ACC_NCCL_SPLIT_SHARE` | `1`: NCCL groups of a part of the ranks share the world's "
      "buffers "
      "(`splitShare`), and their collectives run one after the other | `0` |\n"
      "| `ACC_SHARE_GPUS` | `1`: allow more ranks than GPUs on a machine; they share the GPUs | "
      "`0` |\n"
      "| `ACC_CHECK` | `1`: gathered weights are read-only within a scope and inaccessible outside "
      "of it (CPU only) | the value of `--debug` |\n"
      "| `ACC_TRACE` | file for a timeline, for Perfetto or Chrome | none |\n"
      "| `ACC_NCCL_LIBRARY` | path of libnccl.so.2 | searched: next to our library, by the dynamic "
      "loader, in a Python installation |\n"
      "| `ACC_CUDA_BACKEND` | path of libacc_cuda.so; used by tests | next to libacc_runtime.so "
      "|\n"
      "| `ACC_LOG_LEVEL` | lowest level of messages on stderr: `trace`, `debug`, `info`, `warn`, "
      "`error` or `off`: [messages](jobs.md#messages) | `info` |\n"
      "| `ACC_LOG_FORMAT` | form of these messages: `text`, or `json`, one object per line | "
      "`text` "
      "|\n"
      "| `ACC_LOG` | levels of components, which precede `ACC_LOG_LEVEL`: "
      "`collectives:debug,runtime:warn` | none |\n\n"
      "`train_gpt` has further variables for GPUs: examples/train_gpt/cuda/README.md.\n\n"
      "`acclaunch` itself reads the following variables, torchrun's `PET_…` variables where "
      "torchrun reads them,\nand hwloc's `HWLOC_…`:\n\n"
      "| variable | purpose |\n|---|---|\n" +
      own_variables_table() +
      "\nThe following variables of job managers describe the place of a process in its job. They "
      "have precedence\nover the configuration file; flags have precedence over them.\n\n"
      "| job manager | variables |\n|---|---|\n" +
      manager_variables_table() +
      "\n| setting | Accelerate's variable | set | our variable |\n|---|---|---|---|\n";
  for (const SettingRow& row : plugins::settings_table()) {
    if (plugins::reaches_workers(row)) {
      text += "| " + code(row.key) + " | " + code(row.environment) + " | " + export_of(row) +
              " | " + code(plugins::own_variable(row)) + " |\n";
    }
  }
  return text;
}

std::string configuration_document() {
  std::string text =
      "# Flags and configuration keys\n\n"
      "Generated from the settings table by `acclaunch configuration-table`; a test compares this "
      "page with its\noutput.\n\n"
      "A flag has precedence over `\"auto\"` in the DeepSpeed JSON file and over the YAML file; "
      "these have precedence\n"
      "over the default. The environment variable of a setting (docs/environment.md) is used if "
      "neither a flag nor\n"
      "the file names the setting and it has no exported default. `acclaunch explain` shows which "
      "source was used.\n"
      "Inside of `fsdp_config` and `dynamo_config` the prefix `fsdp_` or `dynamo_` may be "
      "omitted.\n\n"
      "| setting | flag | YAML block | DeepSpeed JSON | value | default | |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const SettingRow& row : accelerate_front_end().table) {
    const bool of_top_level = row.section == plugins::Section::launch && row.in_file;
    const std::string unit = row.unit.empty() ? "" : " (" + std::string(row.unit) + ")";
    text += "| " + code(row.key) + " | " + (row.flag == plugins::Flag::none ? "" : "yes") + " | " +
            (of_top_level ? "top level" : code(plugins::block_of(row.section))) + " | " +
            code(row.json) + " | " + plugins::expected_value(row) + unit + " | " +
            code(row.fallback) + " | " + std::string(row.help) + " |\n";
  }
  text +=
      "\n## Keys of a DeepSpeed file that are not settings\n\n"
      "A Python program reads these keys from the file itself. libacc_runtime rejects, at its "
      "start and by name, a\n"
      "key that requests a feature it does not have. It ignores the other keys: they concern "
      "logging, data, Python\n"
      "modules, or files on NVMe (offloading to NVMe is rejected itself). The batch sizes "
      "determine\n`gradient_accumulation_steps`.\n\n"
      "`optimizer` and `scheduler` apply to a program that requests them "
      "(`Model::optimizer_from_settings`): Adam\n"
      "(with AdamW's weight decay unless `adam_w_mode` is false) and the [optimizers of the "
      "runtime](sharding.md#optimizers);\n"
      "WarmupLR, WarmupDecayLR and WarmupCosineLR. Other types and parameters are then rejected. "
      "The program decides about "
      "values that are\n`\"auto\"`.\n\n"
      "| key | value without effect | libacc_runtime |\n|---|---|---|\n";
  for (const auto& [path, fallback, is_refused] : plugins::foreign_deepspeed_keys()) {
    text += "| " + code(path) + " | " + code(fallback) + " | " + (is_refused ? "rejects it" : "") +
            " |\n";
  }
  return text;
}

int commands::environment_table_command(std::span<const std::string> /*arguments*/) {
  std::fputs(environment_document().c_str(), stdout);
  return 0;
}

int commands::configuration_table_command(std::span<const std::string> /*arguments*/) {
  std::fputs(configuration_document().c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher
