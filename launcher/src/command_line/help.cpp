#include "acc/plugins/settings.hpp"
#include "command_line/spelling.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

using plugins::SettingRow;

std::string heading(plugins::Section section) {
  switch (section) {
    case plugins::Section::launch: return "Launch";
    case plugins::Section::training: return "Training, in every mode";
    case plugins::Section::fsdp: return "FSDP (with --use_fsdp or distributed_type: FSDP)";
    case plugins::Section::deepspeed:
      return "DeepSpeed (with --use_deepspeed or distributed_type: DEEPSPEED)";
    case plugins::Section::parallelism: return "Groups";
    case plugins::Section::dynamo: return "torch.compile in a Python program";
    case plugins::Section::fp8: return "fp8 in a Python program (with --mixed_precision fp8)";
    case plugins::Section::zero: break;
  }
  return {};
}

std::string help_entry(const Face& face, const SettingRow& row) {
  constexpr std::size_t kColumn = 44;
  std::string line = "  " + as_typed(face, row.key);
  for (const std::string_view alias : plugins::split(row.alias, '|')) {
    line += ", " + (alias.size() == 1 ? "-" + std::string(alias) : as_typed(face, alias));
  }
  line += row.flag == plugins::Flag::value ? " VALUE" : "";
  line += line.size() < kColumn ? std::string(kColumn - line.size(), ' ')
                                : "\n" + std::string(kColumn, ' ');
  line += std::string(row.help);
  if (row.flag == plugins::Flag::value && row.type != plugins::Type::text) {
    line += " (" + plugins::expected_value(row) + ")";
  }
  if (row.flag == plugins::Flag::value && !row.fallback.empty()) {
    line += " [" + std::string(row.fallback) + "]";
  }
  return line + "\n";
}

}  // namespace

std::string as_typed(const Face& face, std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::ranges::replace(flag, '_', face.separator);
  return flag;
}

std::string help_text(const Face& face) {
  std::string text(face.usage);
  std::string last;
  for (const SettingRow& row : face.table) {
    if (row.flag == plugins::Flag::none) {
      continue;
    }
    if (const std::string title = heading(row.section); title != last) {
      text += "\n" + title + "\n";
      last = title;
    }
    text += help_entry(face, row);
  }
  return text + "\n  --help, -h    --version\n";
}

}  // namespace acc::launcher
