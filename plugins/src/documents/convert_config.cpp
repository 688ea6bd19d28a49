// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/convert_config.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/setting_rows.hpp"
#include "documents/config_writer.hpp"
#include "documents/conversion.hpp"

#include <algorithm>
#include <array>

namespace acc::documents {

using settings::operator""_key;
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kDeepSpeedBlock = settings::block_of(settings::Section::deepspeed);

struct NamedForm {
  std::string_view name;
  ConfigForm form;
};
constexpr std::array kForms = {NamedForm{"fsdp", ConfigForm::fsdp},
                               NamedForm{"fsdp2", ConfigForm::fsdp2},
                               NamedForm{"deepspeed", ConfigForm::deepspeed},
                               NamedForm{"deepspeed-json", ConfigForm::deepspeed_json}};

/// Returns the entries of the file that do not concern sharding, ready for another mode.
Node other_entries(const ConversionInput& input, const ConversionSource& source) {
  Node root = Node::map({{"compute_environment", Node::string("LOCAL_MACHINE")}});
  if (!is_deepspeed_json(input.document)) {
    root = input.document.root;
    for (const std::string_view block :
         {"fsdp_config"sv, kDeepSpeedBlock, "parallelism_config"sv, "fp16"sv}) {
      root.remove(block);
    }
  }
  root.set("mixed_precision", Node::string(source.settings.choice("mixed_precision"_key)));
  return root;
}

/// Adds the parallelism_config block with the sizes of the shard groups. Not needed if the groups
/// are the machines and FSDP 1 names that by its strategy, or if there is one group only.
void add_groups(const ConversionSource& source, ConfigForm form, Node& root) {
  const bool of_machine = source.shard_size == source.gpus_per_machine;
  const bool whole_world = source.shard_size == source.world_size;
  const bool unknown = source.gpus_per_machine == 0;
  const bool named = form == ConfigForm::fsdp ? of_machine || unknown : whole_world;
  if (source.shard_size == 0 || named) {
    return;
  }
  Node block = Node::map({{"parallelism_config_dp_shard_size", Node::number(source.shard_size)}});
  if (source.world_size > 0) {
    block.set("parallelism_config_dp_replicate_size",
              Node::number(source.world_size / source.shard_size));
  }
  root.set("parallelism_config", std::move(block));
}

/// Adds clipping and the like under `deepspeed_config`. Accelerate reads that block in DeepSpeed
/// mode only, acclaunch in every mode.
void add_training_block(const settings::Settings& settings, Node& root) {
  Node block = Node::map();
  add_training(settings, TrainingPlace::other_mode, block);
  if (!block.is_empty()) {
    root.set(kDeepSpeedBlock, std::move(block));
  }
}

Conversion to_fsdp(const ConversionInput& input, const ConversionSource& source, ConfigForm form) {
  Conversion result{other_entries(input, source), std::nullopt, {}};
  result.document.set("distributed_type", Node::string("FSDP"));
  settings::ShardingSettings sharding = fsdp_sharding(source);
  const int version = form == ConfigForm::fsdp ? 1 : 2;
  if (version == 2 && sharding.state_dict_type == settings::StateDictType::local) {
    sharding.state_dict_type = settings::StateDictType::sharded;
  }
  result.document.set("fsdp_config", fsdp_block(sharding, version));
  add_groups(source, form, result.document);
  add_training_block(source.settings, result.document);
  return result;
}

/// Returns an Accelerate file that names a DeepSpeed file, which holds the sharding settings.
Node naming_file(const ConversionInput& input, const ConversionSource& source,
                 const std::string& name) {
  Node root = other_entries(input, source);
  root.remove("mixed_precision");  // Accelerate's plugin accepts it in the DeepSpeed file only
  root.set("distributed_type", Node::string("DEEPSPEED"));
  Node block = Node::map({{"deepspeed_config_file", Node::string(name)}});
  add_beside_file(source.settings, deepspeed_sharding(source), block);
  root.set(kDeepSpeedBlock, std::move(block));
  return root;
}

/// Converts to an Accelerate file with `deepspeed_config`. hpZ needs a DeepSpeed file next to it,
/// because Accelerate's file has no key for it.
Conversion to_deepspeed(const ConversionInput& input, const ConversionSource& source) {
  if (is_deepspeed_json(input.document)) {
    return {naming_file(input, source, input.document.path.string()), std::nullopt, {}};
  }
  const settings::ShardingSettings sharding = deepspeed_sharding(source);
  if (sharding.hpz_partition_size > 1 && !input.deepspeed_file_name.empty()) {
    return {naming_file(input, source, input.deepspeed_file_name),
            deepspeed_json(sharding, source.settings),
            {}};
  }
  Conversion result{other_entries(input, source), std::nullopt, {}};
  result.document.set("distributed_type", Node::string("DEEPSPEED"));
  result.document.set(kDeepSpeedBlock, deepspeed_block(sharding, source.settings));
  if (sharding.hpz_partition_size > 1) {
    result.remarks.push_back(
        "zero_hpz_partition_size " + std::to_string(sharding.hpz_partition_size) +
        " is lost: Accelerate's file has no key for it; with -o FILE it is written to a DeepSpeed "
        "file next to FILE");
  }
  return result;
}

/// Returns a warning that lists the given settings for which DeepSpeed's file has no key; empty if
/// there are none.
std::string launch_keys(const ConversionInput& input, const ConversionSource& source) {
  std::string names;
  for (const settings::SettingRow& row : source.settings.table()) {
    const bool of_launch = row.section == settings::Section::launch && row.engine.read == nullptr;
    const bool of_training = row.section == settings::Section::training && row.json.empty();
    if ((of_launch || of_training) && source.settings.given(row)) {
      names += (names.empty() ? "" : ", ") + std::string(row.key);
    }
  }
  return names.empty() ? ""
                       : input.document.path.string() +
                             ": not in DeepSpeed's own file, pass these to the launcher: " + names;
}

Conversion to_deepspeed_json(const ConversionInput& input, const ConversionSource& source) {
  Conversion result{input.deepspeed_file
                        ? input.deepspeed_file->root
                        : deepspeed_json(deepspeed_sharding(source), source.settings),
                    std::nullopt,
                    {}};
  if (std::string remark = launch_keys(input, source); !remark.empty()) {
    result.remarks.push_back(std::move(remark));
  }
  return result;
}

Conversion written(const ConversionInput& input, const ConversionSource& source, ConfigForm form) {
  switch (form) {
    case ConfigForm::deepspeed: return to_deepspeed(input, source);
    case ConfigForm::deepspeed_json: return to_deepspeed_json(input, source);
    default: return to_fsdp(input, source, form);
  }
}

}  // namespace

ConfigForm config_form_named(const std::string& name) {
  const auto* found = std::ranges::find(kForms, name, &NamedForm::name);
  if (found == kForms.end()) {
    std::array<std::string_view, kForms.size()> names{};
    std::ranges::transform(kForms, names.begin(), &NamedForm::name);
    throw Error(Errc::invalid_argument,
                "--to must be fsdp, fsdp2, deepspeed or deepspeed-json, got \"" + name + "\"" +
                    settings::did_you_mean(name, names));
  }
  return found->form;
}

bool is_deepspeed_json(const Document& document) {
  return document.path.extension() == ".json" &&
         document.root.find("distributed_type") == nullptr &&
         document.root.find("compute_environment") == nullptr;
}

std::string named_deepspeed_file(const Document& document) {
  const Node* block = document.root.find(kDeepSpeedBlock);
  const Node* name = block == nullptr ? nullptr : block->find("deepspeed_config_file");
  return name == nullptr || is_deepspeed_json(document) ? "" : name->text;
}

ConfigForm opposite_form(const Document& document) {
  const Node* type = document.root.find("distributed_type");
  return type != nullptr && upper(type->text) == "FSDP" ? ConfigForm::deepspeed : ConfigForm::fsdp;
}

// Warnings are in the order: notices of reading, changes of meaning, losses of the written form.
Conversion convert_config(const ConversionInput& input, ConfigForm form) {
  const ConversionSource source = read_conversion_source(input);
  if (source.form == form) {
    return {input.document.root,
            std::nullopt,
            {input.document.path.string() + ": is in this form already and is not changed"}};
  }
  Conversion result = written(input, source, form);
  std::vector<std::string> remarks = source.notices;
  const auto add = [&](const std::vector<std::string>& more) {
    remarks.insert(remarks.end(), more.begin(), more.end());
  };
  add(conversion_remarks(source, form));
  add(result.remarks);
  result.remarks = std::move(remarks);
  return result;
}

}  // namespace acc::documents
