#include "rounds/rank_order.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace acc::rendezvous::rounds {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The digits that `text` begins with, without leading zeros; `text` goes on behind them.
std::string_view take_number(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_digit);
  std::string_view number(text.begin(), end);
  text.remove_prefix(number.size());
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

/// Those without a rank come after those with one.
int rank_or_last(const std::optional<int>& rank) {
  return rank.value_or(std::numeric_limits<int>::max());
}

/// The first key in which two agents differ decides.
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
  std::ranges::sort(waiting, {}, [](const Agent* agent) {
    return std::pair(!agent->rank.has_value(), agent->arrival);
  });
  waiting.resize(std::min(waiting.size(), num_machines));
  std::ranges::sort(waiting, comes_before);
  return waiting;
}

}  // namespace acc::rendezvous::rounds
