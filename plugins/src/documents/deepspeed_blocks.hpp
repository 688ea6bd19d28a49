#pragma once

#include "acc/plugins/deepspeed_json.hpp"
#include "acc/plugins/faults.hpp"

/// The blocks of a DeepSpeed JSON file whose keys depend on a type that they name.
namespace acc::plugins::deepspeed {

/// Checks `optimizer` and `scheduler`: types, names and values of parameters. Adds what is "auto"
/// to `filled_by_program`.
void check_optimizer(const Node& block, Faults& faults,
                     std::vector<DeepSpeedFile::Key>& filled_by_program);
void check_scheduler(const Node& block, Faults& faults,
                     std::vector<DeepSpeedFile::Key>& filled_by_program);

}  // namespace acc::plugins::deepspeed
