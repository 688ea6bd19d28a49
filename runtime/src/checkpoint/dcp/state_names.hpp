#pragma once

#include "checkpoint/dcp/metadata.hpp"

#include <string>
#include <vector>

namespace acc::checkpoint::dcp {

/// What an entry of a DCP folder is to us. `kind`: "param", a moment's ("exp_avg"), "value" for
/// tensors of no model or optimizer; for pickled values "group" (then `group` and `key` tell which
/// of the optimizer's parameter groups, and which of its keys) or "value".
struct StateName {
  std::string name;
  std::string kind;
  std::size_t group = 0;
  std::string key;
};

/// One for each entry. A model's tensors lie under "model" or under any single top key, an
/// optimizer's under "optimizer" or "optim", and both may lie under one key more ("app.model.X").
/// Where the folder does not tell paths, only "model." is taken for a key.
std::vector<StateName> state_names(const std::vector<Entry>& entries);

}  // namespace acc::checkpoint::dcp
