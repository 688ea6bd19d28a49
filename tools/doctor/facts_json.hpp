// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/facts.hpp"

#include <nlohmann/json.hpp>

namespace acc::doctor {

// JSON objects whose fields have the names of the members. Used in the machines' messages and in
// the report.
nlohmann::ordered_json to_json(const MachineFacts& facts);
nlohmann::ordered_json to_json(const PairFacts& pair);

}  // namespace acc::doctor
