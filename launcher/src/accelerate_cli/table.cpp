// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/setting_keys.hpp"
#include "accelerate_cli/front_end.hpp"
#include "plan/common_rows.hpp"

namespace acc::launcher::accelerate_cli {

std::span<const plugins::SettingRow> accelerate_table() noexcept {
  static const std::vector<plugins::SettingRow> kAll = [] {
    const auto shared = plugins::settings_table();
    std::vector<plugins::SettingRow> rows(shared.begin(), shared.end());
    rows.insert(rows.end(), flag_rows::kStart.begin(), flag_rows::kStart.end());
    return plan::with_common_rows(rows);
  }();
  return kAll;
}

}  // namespace acc::launcher::accelerate_cli
