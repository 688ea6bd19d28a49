// Reference tables for docs/, made from the settings table so that they cannot fall behind it.
#include "acc/launcher/explain.hpp"
#include "acc/launcher/face.hpp"
#include "acc/plugins/deepspeed_json.hpp"
#include "commands/commands.hpp"
#include "host/own_variables.hpp"

#include <cstdio>

namespace acc::launcher {
namespace {

using plugins::SettingRow;

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
  for (const auto& [name, use] : own_variables()) {
    text += "| " + code(name) + " | " + std::string(use) + " |\n";
  }
  return text;
}

std::string manager_variables_table() {
  std::string text;
  for (const auto& [manager, names] : manager_variables()) {
    std::string cell;
    for (const std::string_view name : plugins::split(names, ' ')) {
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
      "Made from the settings table by `acclaunch environment-table`; a test compares the two.\n\n"
      "A setting travels under Accelerate's name where it has one. It travels as `ACC_…` where\n"
      "Accelerate has none, where the value comes from a DeepSpeed JSON file, and (accumulation,\n"
      "clipping) outside DeepSpeed mode; a worker reads `ACC_…` first. `ACC_MODE` is `none`, "
      "`fsdp`\n"
      "or `deepspeed`, `ACC_DEVICE` is `cpu` or `cuda`. Besides these a worker gets torchrun's\n"
      "variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, TORCHELASTIC_*, …), OMP_NUM_THREADS\n"
      "and, with `--gpu_ids`, CUDA_VISIBLE_DEVICES. Where machines have differently many ranks,\n"
      "`ACC_LOCAL_WORLD_SIZES` says how many each has: `1,2`. `ACC_FLIGHT_RECORD` names the file in\n"
      "which the runtime leaves its last collectives for [the report](report.md). `ACC_JOB_SECRET` "
      "holds\n"
      "128 random bits that all workers of a round share: [who is trusted](architecture.md#trust).\n"
      "`ACC_SETTING_SOURCES` says where the launcher found each value (`KEY=config.yaml:12` or\n"
      "`KEY=--flag`, joined by `;`), so that a worker's message can name the place.\n\n"
      "These variables are the runtime's own, handed on as they are found:\n\n"
      "| variable | means | default |\n|---|---|---|\n"
      "| `ACC_COLLECTIVE_TIMEOUT` | seconds that a collective waits for a living peer | 1800 |\n"
      "| `ACC_SHM_GATHER` | `copy`: gathers on one host copy, as those between hosts do | `share` "
      "|\n"
      "| `ACC_COLLECTIVES` | who moves the memory of GPUs: `nccl`, `staged` (through host memory) "
      "or `auto` | `auto` |\n"
      "| `ACC_SHARE_GPUS` | `1`: more ranks than GPUs on a machine share them | `0` |\n"
      "| `ACC_CHECK` | `1`: gathered weights are read-only in a scope and inaccessible outside of "
      "one "
      "(on the CPU) | what `--debug` says |\n"
      "| `ACC_TRACE` | file for a timeline that Perfetto and Chrome show | none |\n"
      "| `ACC_NCCL_LIBRARY` | the libnccl.so.2 to use | found: beside our library, by the loader, "
      "in a Python |\n"
      "| `ACC_CUDA_BACKEND` | the libacc_cuda.so to use, as tests do | the one beside "
      "libacc_runtime.so |\n"
      "| `ACC_LOG_LEVEL` | what is logged to stderr: `debug`, `info`, `warn`, `error` or `off` | "
      "`info` |\n"
      "| `ACC_LOG` | the same by part: `collectives:debug,runtime:warn` | none |\n\n"
      "`train_gpt` has a few of its own on GPUs: examples/train_gpt/cuda/README.md.\n\n"
      "`acclaunch` itself reads the variables below, torchrun's `PET_…` where torchrun would, and\n"
      "hwloc's `HWLOC_…`:\n\n"
      "| variable | what for |\n|---|---|\n" +
      own_variables_table() +
      "\nWhat a manager of jobs says of a process's place in its job counts below flags and above\n"
      "the file:\n\n"
      "| manager | variables |\n|---|---|\n" +
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
      "Made from the settings table by `acclaunch configuration-table`; a test compares the "
      "two.\n\n"
      "A flag beats the DeepSpeed JSON file's `\"auto\"` and the YAML file, those beat the "
      "default.\n"
      "A variable of the environment by which the setting travels (docs/environment.md) counts "
      "where\n"
      "neither flag nor file names it and it has no exported default; `acclaunch explain` shows "
      "it.\n"
      "Inside `fsdp_config` and `dynamo_config` the prefix `fsdp_` or `dynamo_` may be left "
      "out.\n\n"
      "| setting | flag | YAML block | DeepSpeed JSON | value | default | |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const SettingRow& row : accelerate_face().table) {
    const bool of_top_level = row.section == plugins::Section::launch && row.in_file;
    const std::string unit = row.unit.empty() ? "" : " (" + std::string(row.unit) + ")";
    text += "| " + code(row.key) + " | " + (row.flag == plugins::Flag::none ? "" : "yes") + " | " +
            (of_top_level ? "top level" : code(plugins::block_of(row.section))) + " | " +
            code(row.json) + " | " + plugins::expected_value(row) + unit + " | " +
            code(row.fallback) + " | " + std::string(row.help) + " |\n";
  }
  text +=
      "\n## Keys of a DeepSpeed file that are no settings\n\n"
      "A Python program has them from the file. libacc_runtime refuses at its start, by name, what "
      "asks\nfor something that it has not; the others mean nothing to it: they are about logs, "
      "data, modules of\nPython or files on NVMe, which is refused itself. The batch sizes give "
      "`gradient_accumulation_steps`.\n\n"
      "`optimizer` and `scheduler` count for a program that asks for what the file says "
      "(`Model::optimizer_from_settings`):\nAdam (which decays as AdamW does unless `adam_w_mode` "
      "is false), AdamW and SGD; WarmupLR, WarmupDecayLR and\nWarmupCosineLR. Other types and "
      "parameters are refused then. What is `\"auto\"` stays the program's.\n\n"
      "| key | says nothing with | libacc_runtime |\n|---|---|---|\n";
  for (const auto& [path, fallback, is_refused] : plugins::foreign_deepspeed_keys()) {
    text += "| " + code(path) + " | " + code(fallback) + " | " + (is_refused ? "refuses it" : "") +
            " |\n";
  }
  return text;
}

int environment_table_command(std::span<const std::string> /*arguments*/) {
  std::fputs(environment_document().c_str(), stdout);
  return 0;
}

int configuration_table_command(std::span<const std::string> /*arguments*/) {
  std::fputs(configuration_document().c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher
