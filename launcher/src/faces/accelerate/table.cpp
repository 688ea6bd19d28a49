#include "faces/accelerate/table.hpp"

#include "plan/common_rows.hpp"

namespace acc::launcher {

std::span<const plugins::SettingRow> accelerate_table() noexcept {
  static const std::vector<plugins::SettingRow> kAll = with_common_rows(plugins::settings_table());
  return kAll;
}

}  // namespace acc::launcher
