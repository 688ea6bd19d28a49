// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/language_model.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace train_gpt {

/// Draws `count` tokens one after the other; each depends on at most the last `window` tokens.
/// Collective: all ranks compute the same tokens, because gathering the weights needs all ranks.
std::vector<std::int32_t> sample_tokens(LanguageModel& model, std::vector<std::int32_t> prompt,
                                        std::int64_t count, std::int64_t window,
                                        std::uint64_t seed);

/// Returns the text of byte tokens; else the token ids, each followed by a space.
std::string printable(const std::vector<std::int32_t>& tokens, bool bytes);

}  // namespace train_gpt
