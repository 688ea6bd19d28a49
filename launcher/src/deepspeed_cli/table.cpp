// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/setting_keys.hpp"
#include "deepspeed_cli/front_end.hpp"
#include "plan/common_rows.hpp"

namespace acc::launcher::deepspeed_cli {

std::span<const plugins::SettingRow> deepspeed_table() noexcept {
  static const std::vector<plugins::SettingRow> kAll =
      plan::with_common_rows(flag_rows::kDeepSpeed);
  return kAll;
}

}  // namespace acc::launcher::deepspeed_cli
