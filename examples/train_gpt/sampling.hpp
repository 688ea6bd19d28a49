#pragma once

#include "language_model.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace train_gpt {

/// Draws `count` tokens one after the other, given `prompt` and at most the last `window` tokens.
/// All ranks compute the same ones, since all take part in gathering the weights.
std::vector<std::int32_t> sample_tokens(LanguageModel& model, std::vector<std::int32_t> prompt,
                                        std::int64_t count, std::int64_t window,
                                        std::uint64_t seed);

/// Text where a token is a byte, else the ids, each with a space after it.
std::string printable(const std::vector<std::int32_t>& tokens, bool bytes);

}  // namespace train_gpt
