// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/setting_keys.hpp"
#include "plan/common_rows.hpp"
#include "torchrun_cli/front_end.hpp"

namespace acc::launcher::torchrun_cli {

std::span<const plugins::SettingRow> torchrun_table() noexcept {
  static const std::vector<plugins::SettingRow> kAll = plan::with_common_rows(flag_rows::kTorchrun);
  return kAll;
}

}  // namespace acc::launcher::torchrun_cli
