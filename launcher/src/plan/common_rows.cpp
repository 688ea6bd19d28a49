// SPDX-License-Identifier: Apache-2.0
#include "plan/common_rows.hpp"

#include "acc/launcher/setting_keys.hpp"

namespace acc::launcher::plan {

using plugins::SettingRow;

std::vector<SettingRow> with_common_rows(std::span<const SettingRow> rows) {
  std::vector<SettingRow> all(rows.begin(), rows.end());
  const auto add = [&](const SettingRow& row) {
    if (plugins::find_setting(row.key, rows) == nullptr) {
      all.push_back(row);
    }
  };
  std::ranges::for_each(flag_rows::kCommon, add);
  for (const plugins::SettingKey key : plugins::kOfEveryFrontEnd) {
    add(*plugins::find_setting(key.name()));
  }
  return all;
}

}  // namespace acc::launcher::plan
