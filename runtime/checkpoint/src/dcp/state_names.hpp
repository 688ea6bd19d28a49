// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/dcp/metadata.hpp"

#include <string>
#include <vector>

namespace acc::checkpoint::dcp {

/// Meaning of an entry of a DCP folder. `kind`: "param", a kind of moment ("exp_avg"), or "value"
/// for tensors that belong to no model or optimizer. For pickled values, and tensors of one element
/// among them: "group" (`key` and `group` then say which key of which parameter group, or
/// `parameter` of which parameter, where each has its own) or "value".
struct StateName {
  std::string name;
  std::string kind;
  std::size_t group = 0;
  std::string key;
  std::string parameter = {};
};

/// Returns one for each entry. The tensors of a model lie under "model" or under any single top
/// key, those of an optimizer under "optimizer" or "optim". Both may lie under one more key
/// ("app.model.X"). If the folder has no paths, only "model." counts as a key.
std::vector<StateName> state_names(const std::vector<Entry>& entries);

}  // namespace acc::checkpoint::dcp
