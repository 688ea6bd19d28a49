// SPDX-License-Identifier: Apache-2.0
#include "rounds/rank_order.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace acc::rendezvous::rounds {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Removes the leading digits from `text` and returns them without leading zeros.
std::string_view take_number(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_digit);
  std::string_view number(text.begin(), end);
  text.remove_prefix(number.size());
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

/// Sort key of a rank: machines without one come last.
int rank_or_last(const std::optional<int>& rank) {
  return rank.value_or(std::numeric_limits<int>::max());
}

/// Order of ranks: compares one key after the other. The arrival is unique, so no two agents are
/// equal.
bool comes_before(const Agent* a, const Agent* b) {
  const auto ranks = [](const Agent* agent) {
    return std::pair(rank_or_last(agent->machine.machine_rank), rank_or_last(agent->rank));
  };
  if (ranks(a) != ranks(b)) {
    return ranks(a) < ranks(b);
  }
  for (const auto field : {&Machine::host, &Machine::address}) {
    const std::string& mine = a->machine.*field;
    const std::string& other = b->machine.*field;
    if (natural_less(mine, other) || natural_less(other, mine)) {
      return natural_less(mine, other);
    }
  }
  return a->arrival < b->arrival;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x != y) {
        // Without leading zeros the longer number is the larger one, of any length.
        return std::pair(x.size(), x) < std::pair(y.size(), y);
      }
    } else if (a.front() != b.front()) {
      return a.front() < b.front();
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

std::vector<Agent*> in_rank_order(std::vector<Agent*> waiting, std::size_t num_machines) {
  // First sort: who gets a place. Second sort: the ranks of those who did.
  std::ranges::sort(waiting, {}, [](const Agent* agent) {
    return std::pair(!agent->rank.has_value(), agent->arrival);
  });
  waiting.resize(std::min(waiting.size(), num_machines));
  std::ranges::sort(waiting, comes_before);
  return waiting;
}

}  // namespace acc::rendezvous::rounds
