#pragma once

#include "doctor/facts.hpp"

#include <nlohmann/json.hpp>

namespace acc::doctor {

// Field by field, under the names of the members: the machines' messages and the report.
nlohmann::ordered_json to_json(const MachineFacts& facts);
nlohmann::ordered_json to_json(const PairFacts& pair);

}  // namespace acc::doctor
