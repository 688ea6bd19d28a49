#pragma once

#include "acc/plugins/deepspeed_json.hpp"
#include "acc/plugins/faults.hpp"

#include <string>
#include <vector>

/// The blocks of a DeepSpeed JSON file whose keys depend on a type that they name.
namespace acc::plugins::deepspeed {

/// A setting that such a block makes: `optimizer.params.lr`. Its text is ready to be set.
struct BlockValue {
  std::string path;
  std::string text;
  std::string where;
};

/// Checks `optimizer` or `scheduler`: types, names and values of parameters. Adds what is "auto" to
/// `filled_by_program`. Returns what the block says; a type or parameter that the runtime has not
/// is named in the type: `Lion`, `Adam with amsgrad true`.
std::vector<BlockValue> read_optimizer(const Node& block, Faults& faults,
                                       std::vector<DeepSpeedFile::Key>& filled_by_program);
std::vector<BlockValue> read_scheduler(const Node& block, Faults& faults,
                                       std::vector<DeepSpeedFile::Key>& filled_by_program);

}  // namespace acc::plugins::deepspeed
