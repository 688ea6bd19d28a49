#include "cluster/hostlist.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>

namespace acc::launcher {
namespace {

constexpr std::size_t kMostHosts = 1'000'000;
constexpr const char* kAtMost = "no more than a million";
constexpr std::size_t kMostCharacters = 253;  // of a name in the DNS

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Goes through a list, and says where it ends being one.
class Reader {
 public:
  explicit Reader(const Given& list) : list_(list) {}

  [[nodiscard]] bool at_end() const { return at_ == list_.text.size(); }
  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] bool sees(char wanted) const { return !at_end() && list_.text[at_] == wanted; }

  bool skips(char wanted) {
    const bool seen = sees(wanted);
    at_ += seen ? 1 : 0;
    return seen;
  }

  void take(char wanted, const std::string& expected) {
    if (!skips(wanted)) {
      throw fault(at_, expected);
    }
  }

  template <typename Belongs>
  std::string_view take_while(Belongs belongs) {
    const std::size_t start = at_;
    while (!at_end() && belongs(list_.text[at_])) {
      ++at_;
    }
    return std::string_view(list_.text).substr(start, at_ - start);
  }

  [[nodiscard]] Error fault(std::size_t at, const std::string& expected) const {
    constexpr std::size_t kShown = 100;
    const std::string& text = list_.text;
    const std::string shown = text.size() <= kShown ? text : text.substr(0, kShown) + "...";
    return {Errc::config, list_.where + " \"" + shown + "\": expected " + expected +
                              " at character " + std::to_string(at + 1) + ", got " +
                              (at < text.size() ? "\"" + text.substr(at, 20) + "\"" : "its end")};
  }

 private:
  const Given& list_;
  std::size_t at_ = 0;
};

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

/// What one bracket stands for: `[08-10,3]`, which may be up to `most` numbers.
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

/// `rack[0-1]n[08-10]`: each bracket with the text before it, or text alone.
struct Item {
  struct Part {
    std::string text;
    std::vector<std::string> numbers;
    std::size_t chosen = 0;
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
    throw reader.fault(start, "the name of a host");
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

/// Slurm lets the last bracket vary fastest, then the first, the second, and so on. False: that was
/// the last name.
bool choose_next(Item& item) {
  const auto turns = [](Item::Part& part) {
    part.chosen = (part.chosen + 1) % part.numbers.size();
    return part.chosen != 0;
  };
  return turns(item.parts.back()) || std::any_of(item.parts.begin(), item.parts.end() - 1, turns);
}

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

std::vector<std::string> expand_hosts(const Given& list) {
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

std::vector<int> expand_counts(const Given& list) {
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

}  // namespace acc::launcher
