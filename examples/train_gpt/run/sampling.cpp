// SPDX-License-Identifier: Apache-2.0
#include "run/sampling.hpp"

#include "data/random.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

namespace train_gpt {
namespace {

constexpr double kTemperature = 0.8;  // values below 1 make unlikely tokens rarer

/// Returns index i with probability proportional to exp(logits[i] / kTemperature). fraction: a
/// random number in [0, 1).
std::int32_t draw(std::span<const float> logits, double fraction) {
  const double maximum = *std::max_element(logits.begin(), logits.end());
  std::vector<double> cumulative;
  cumulative.reserve(logits.size());
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp((logit - maximum) / kTemperature);
    cumulative.push_back(sum);
  }
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end() - 1, fraction * sum);
  return static_cast<std::int32_t>(drawn - cumulative.begin());
}

}  // namespace

std::vector<std::int32_t> sample_tokens(LanguageModel& model, std::vector<std::int32_t> prompt,
                                        std::int64_t count, std::int64_t window,
                                        std::uint64_t seed) {
  std::vector<std::int32_t> tokens = std::move(prompt);
  const std::size_t prompt_size = tokens.size();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t visible = std::min(tokens.size(), static_cast<std::size_t>(window));
    const auto logits =
        model.next_token_logits(std::span<const std::int32_t>(tokens).last(visible));
    tokens.push_back(draw(logits, random_fraction({seed, static_cast<std::uint64_t>(i)})));
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(prompt_size));
  return tokens;
}

std::string printable(const std::vector<std::int32_t>& tokens, bool bytes) {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (bytes) {
      text += static_cast<char>(token);
    } else {
      text += std::to_string(token) + ' ';
    }
  }
  return text;
}

}  // namespace train_gpt
