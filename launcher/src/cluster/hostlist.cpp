// SPDX-License-Identifier: Apache-2.0
// Recursive-descent parser of Slurm's compressed lists. A hostlist is a comma-separated list of
// items; an item is text with bracketed number ranges, `rack[0-1]n[08-10]`, which stands for every
// combination. The number of results is limited before they are generated, because a short list may
// stand for an enormous number of hosts.
#include "cluster/hostlist.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <fstream>
#include <sstream>

namespace acc::launcher::cluster {
namespace {

constexpr std::size_t kMostHosts = 1'000'000;
constexpr const char* kAtMost = "no more than a million";
constexpr std::size_t kMostCharacters = 253;  // longest name in the DNS (RFC 1035)

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Reads a list from left to right, and reports the position of a syntax error.
class Reader {
 public:
  explicit Reader(const Sourced<std::string>& list) : list_(list) {}

  [[nodiscard]] bool at_end() const { return at_ == list_.value.size(); }
  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] bool sees(char wanted) const { return !at_end() && list_.value[at_] == wanted; }

  /// Skips the character if it is next. True if it was.
  bool skips(char wanted) {
    const bool seen = sees(wanted);
    at_ += seen ? 1 : 0;
    return seen;
  }

  /// Skips the character, or throws an error with `expected`.
  void take(char wanted, const std::string& expected) {
    if (!skips(wanted)) {
      throw fault(at_, expected);
    }
  }

  template <typename Belongs>
  std::string_view take_while(Belongs belongs) {
    const std::size_t start = at_;
    while (!at_end() && belongs(list_.value[at_])) {
      ++at_;
    }
    return std::string_view(list_.value).substr(start, at_ - start);
  }

  [[nodiscard]] Error fault(std::size_t at, const std::string& expected) const {
    constexpr std::size_t kShown = 100;
    const std::string& text = list_.value;
    const std::string shown = text.size() <= kShown ? text : text.substr(0, kShown) + "...";
    return {Errc::config,
            list_.where + " \"" + shown + "\": expected " + expected + " at character " +
                std::to_string(at + 1) + ", got " +
                (at < text.size() ? "\"" + text.substr(at, 20) + "\"" : "the end of the list")};
  }

 private:
  const Sourced<std::string>& list_;
  std::size_t at_ = 0;
};

/// A number with its number of digits: `08` pads to two digits.
struct Number {
  std::uint64_t value = 0;
  std::size_t width = 0;
};

Number take_number(Reader& reader) {
  const std::size_t start = reader.at();
  const std::string_view digits = reader.take_while(is_digit);
  Number number{0, digits.size()};
  for (const char digit : digits) {
    constexpr std::uint64_t kMost = 100'000'000'000'000'000;
    if (number.value >= kMost || number.width > kMostCharacters) {
      throw reader.fault(start, "a number below 10^18");
    }
    number.value = number.value * 10 + static_cast<std::uint64_t>(digit - '0');
  }
  if (digits.empty()) {
    throw reader.fault(start, "a number");
  }
  return number;
}

std::string padded(std::uint64_t value, std::size_t width) {
  const std::string digits = std::to_string(value);
  return std::string(width - std::min(width, digits.size()), '0') + digits;
}

/// Reads one bracket, `[08-10,3]`, and returns its numbers as text. Throws an error if there are
/// more than `most`.
std::vector<std::string> take_bracket(Reader& reader, std::size_t most) {
  std::vector<std::string> numbers;
  reader.take('[', "[");
  do {
    const Number low = take_number(reader);
    const std::size_t start = reader.at() + 1;  // behind the dash
    const Number high = reader.skips('-') ? take_number(reader) : low;
    if (high.value < low.value) {
      throw reader.fault(start, "a number of at least " + std::to_string(low.value));
    }
    if (high.value - low.value >= most - numbers.size()) {
      throw reader.fault(start, kAtMost);
    }
    for (std::uint64_t value = low.value; value <= high.value; ++value) {
      numbers.push_back(padded(value, low.width));
    }
  } while (reader.skips(','));
  reader.take(']', "\"-\", \",\" or \"]\"");
  return numbers;
}

/// One item of the list, `rack[0-1]n[08-10]`: a sequence of parts.
struct Item {
  /// Text and the bracket after it; `numbers` is {""} for text without a bracket.
  struct Part {
    std::string text;
    std::vector<std::string> numbers;
    std::size_t chosen = 0;  ///< index of the current number
  };
  std::vector<Part> parts;
};

bool belongs_to_name(char c) {
  return c != '[' && c != ']' && c != ',' && std::isgraph(static_cast<unsigned char>(c)) != 0;
}

Item take_item(Reader& reader) {
  Item item;
  std::size_t count = 1;
  const std::size_t start = reader.at();
  while (true) {
    const std::size_t text_at = reader.at();
    std::string text(reader.take_while(belongs_to_name));
    if (reader.sees('[')) {
      item.parts.push_back({std::move(text), take_bracket(reader, kMostHosts / count)});
      count *= item.parts.back().numbers.size();
      continue;
    }
    if (!text.empty() && !item.parts.empty()) {
      throw reader.fault(text_at, "\",\" or \"[\" after a bracket");
    }
    if (!text.empty()) {
      item.parts.push_back({std::move(text), {""}});
    }
    break;
  }
  if (item.parts.empty()) {
    throw reader.fault(start, "a host name");
  }
  return item;
}

std::string chosen_name(const Item& item) {
  std::string name;
  for (const Item::Part& part : item.parts) {
    name += part.text + part.numbers[part.chosen];
  }
  return name;
}

/// Advances to the item's next name. Slurm varies the last bracket fastest, then the first, the
/// second, and so on. False after the last name.
bool choose_next(Item& item) {
  const auto turns = [](Item::Part& part) {
    part.chosen = (part.chosen + 1) % part.numbers.size();
    return part.chosen != 0;
  };
  return turns(item.parts.back()) || std::any_of(item.parts.begin(), item.parts.end() - 1, turns);
}

/// Appends all names of an item to `hosts`.
void expand(Item& item, const Reader& reader, std::size_t start, std::vector<std::string>& hosts) {
  do {
    std::string name = chosen_name(item);
    if (name.size() > kMostCharacters) {
      throw reader.fault(start, "names of at most 253 characters");
    }
    if (hosts.size() == kMostHosts) {
      throw reader.fault(start, kAtMost);
    }
    hosts.push_back(std::move(name));
  } while (choose_next(item));
}

int take_count(Reader& reader) {
  const std::size_t start = reader.at();
  const Number number = take_number(reader);
  if (number.value > kMostHosts) {
    throw reader.fault(start, "a number up to a million");
  }
  return static_cast<int>(number.value);
}

}  // namespace

std::vector<std::string> expand_hosts(const Sourced<std::string>& list) {
  Reader reader(list);
  std::vector<std::string> hosts;
  do {
    const std::size_t start = reader.at();
    Item item = take_item(reader);
    expand(item, reader, start, hosts);
    if (!reader.at_end()) {
      reader.take(',', "\",\"");
    }
  } while (!reader.at_end());
  return hosts;
}

std::vector<int> expand_counts(const Sourced<std::string>& list) {
  Reader reader(list);
  std::vector<int> counts;
  do {
    const std::size_t start = reader.at();
    const int count = take_count(reader);
    int times = 1;
    if (reader.skips('(')) {
      reader.take('x', "\"x\"");
      times = take_count(reader);
      reader.take(')', "\")\"");
    }
    if (static_cast<std::size_t>(times) > kMostHosts - counts.size()) {
      throw reader.fault(start, kAtMost);
    }
    counts.insert(counts.end(), static_cast<std::size_t>(times), count);
    if (!reader.at_end()) {
      reader.take(',', "\",\" or \"(\"");
    }
  } while (!reader.at_end());
  return counts;
}

void HostCounts::add(const std::string& host, int count) {
  const auto found = std::ranges::find(hosts, host);
  if (found == hosts.end()) {
    hosts.push_back(host);
    counts.push_back(count);
  } else {
    counts[static_cast<std::size_t>(found - hosts.begin())] += count;
  }
}

HostCounts count_hosts(const std::string& text) {
  HostCounts found;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    found.add(word, 1);
  }
  return found;
}

std::optional<HostCounts> count_hosts_in(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  HostCounts found = file ? count_hosts(text.str()) : HostCounts{};
  return found.hosts.empty() ? std::nullopt : std::optional(std::move(found));
}

}  // namespace acc::launcher::cluster
