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
      "This page is the output of `acclaunch environment-table`; a test compares the two.\n\n"
      "A setting is passed to the workers under Accelerate's variable, if Accelerate has one. It "
      "is passed as `ACC_…` if\n"
      "Accelerate has none, if the value comes from a DeepSpeed JSON file, and (accumulation,\n"
      "clipping) outside of DeepSpeed mode; a worker reads `ACC_…` first. `ACC_MODE` is `none`, "
      "`fsdp`\n"
      "or `deepspeed`, `ACC_DEVICE` is `cpu` or `cuda`. In addition a worker gets torchrun's\n"
      "variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, TORCHELASTIC_*, …), OMP_NUM_THREADS\n"
      "and, with `--gpu_ids`, CUDA_VISIBLE_DEVICES. If machines have different numbers of ranks,\n"
      "`ACC_LOCAL_WORLD_SIZES` lists the number of each machine: `1,2`. `ACC_FLIGHT_RECORD` names "
      "the file to\n"
      "which the runtime writes its last collectives for [the report](report.md). "
      "`ACC_JOB_SECRET` contains\n"
      "128 random bits that all workers of a round share ([trust](architecture.md#trust)).\n"
      "`ACC_SETTING_SOURCES` lists where the launcher found each value (`KEY=config.yaml:12` or\n"
      "`KEY=--flag`, joined by `;`), so that the messages of a worker can name the place.\n\n"
      "The runtime itself reads these variables. The launcher passes them on unchanged:\n\n"
      "| variable | meaning | default |\n"
      "|---|---|---|\n"
      "| `ACC_COLLECTIVE_TIMEOUT` | timeout in seconds of a collective that waits for a peer that "
      "is alive | 1800 |\n"
      "| `ACC_SHM_GATHER` | `copy`: gathers on one machine copy the data, as gathers between "
      "machines do | `share` |\n"
      "| `ACC_COLLECTIVES` | route of the collectives on GPU memory: `nccl`, `staged` (through "
      "host memory) or `auto` | `auto` |\n"
      "| `ACC_SHARE_GPUS` | `1`: more ranks than GPUs on a machine share the GPUs | `0` |\n"
      "| `ACC_CHECK` | `1`: gathered weights are read-only inside of a scope and inaccessible "
      "outside (on the CPU) | the value of `--debug` |\n"
      "| `ACC_TRACE` | file for a timeline, for Perfetto and Chrome | none |\n"
      "| `ACC_NCCL_LIBRARY` | path of the libnccl.so.2 to use | searched next to "
      "libacc_runtime.so, by the loader, in the Python installation |\n"
      "| `ACC_CUDA_BACKEND` | path of the libacc_cuda.so to use (for tests) | next to "
      "libacc_runtime.so |\n"
      "| `ACC_LOG_LEVEL` | level of the log on stderr: `debug`, `info`, `warn`, `error` or `off` "
      "| `info` |\n"
      "| `ACC_LOG` | levels by component: `collectives:debug,runtime:warn` | none |\n\n"
      "`train_gpt` has variables of its own for GPUs: examples/train_gpt/cuda/README.md.\n\n"
      "`acclaunch` itself reads the variables below, torchrun's `PET_…` as torchrun does, and\n"
      "hwloc's `HWLOC_…`:\n\n"
      "| variable | meaning |\n"
      "|---|---|\n" +
      own_variables_table() +
      "\n"
      "Variables of cluster managers that describe the place of a process in its job. They are "
      "used if no flag gives\n"
      "the value, and override the file:\n\n"
      "| manager | variables |\n"
      "|---|---|\n" +
      manager_variables_table() +
      "\n"
      "| setting | Accelerate's variable | set | acclaunch's variable |\n"
      "|---|---|---|---|\n";
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
      "This page is the output of `acclaunch configuration-table`; a test compares the two.\n\n"
      "A flag overrides the YAML file, and a value `\"auto\"` in the DeepSpeed JSON file. The "
      "files override the default.\n"
      "An environment variable of a setting ([environment.md](environment.md)) is used if\n"
      "neither a flag nor a file gives the setting and its default is not exported; `acclaunch "
      "explain` shows it.\n"
      "Inside `fsdp_config` and `dynamo_config` the prefix `fsdp_` or `dynamo_` may be omitted.\n\n"
      "| setting | flag | YAML block | DeepSpeed JSON | value | default | meaning |\n"
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
      "\n"
      "## DeepSpeed keys that are not settings\n\n"
      "Python programs read these keys from the file. libacc_runtime refuses at its start, by "
      "name, every key that requests\n"
      "a feature that it does not have. It ignores the others, which concern logs, data, Python "
      "modules\n"
      "or files on NVMe (offload to NVMe itself is refused). The batch sizes determine "
      "`gradient_accumulation_steps`.\n\n"
      "`optimizer` and `scheduler` apply to a program that uses the file's optimizer "
      "(`Model::optimizer_from_settings`):\n"
      "Adam (with AdamW's weight decay unless `adam_w_mode` is false), AdamW and SGD; WarmupLR, "
      "WarmupDecayLR and\n"
      "WarmupCosineLR. Such a program refuses other types and parameters. A value `\"auto\"` is "
      "left to the program.\n\n"
      "| key | value without effect | libacc_runtime |\n"
      "|---|---|---|\n";
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
