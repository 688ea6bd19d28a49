// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/deepspeed_json.hpp"
#include "acc/settings/faults.hpp"

#include <string>
#include <vector>

/// The blocks of a DeepSpeed JSON file whose keys depend on their `type`.
namespace acc::documents::deepspeed {

/// A value that such a block gives to a setting. path: `optimizer.params.lr`. text: the value in
/// the spelling of the settings.
struct BlockValue {
  std::string path;
  std::string text;
  std::string where;
};

/// Check the type, the names and the values of the block's parameters. Add wrong ones to `faults`
/// and "auto" values to `filled_by_program`. Return the values for the settings table; a type or
/// parameter that the runtime lacks is named in the value of the type: `Lion`, `Adam with amsgrad
/// true`.
std::vector<BlockValue> read_optimizer(const Node& block, settings::Faults& faults,
                                       std::vector<DeepSpeedFile::Key>& filled_by_program);
std::vector<BlockValue> read_scheduler(const Node& block, settings::Faults& faults,
                                       std::vector<DeepSpeedFile::Key>& filled_by_program);

}  // namespace acc::documents::deepspeed
