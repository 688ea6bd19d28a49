#include "plan/torchrun_values.hpp"

#include "acc/plugins/faults.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <limits>
#include <random>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;
using plugins::Faults;
using Streams = OutputPlan::Streams;

constexpr Streams kBoth = 3;
constexpr std::chrono::seconds kStaticJoinTimeout{900};
constexpr std::chrono::seconds kElasticJoinTimeout{600};

Error bad_value(const Given& given, const std::string& expected) {
  return {Errc::config, given.where + " must be " + expected + ", got \"" + given.text + "\""};
}

/// Digits only: no sign, no blank.
std::optional<int> read_number(std::string_view text) {
  const bool digits = text.find_first_not_of("0123456789") == std::string_view::npos;
  const auto value = digits ? plugins::parse_integer(text) : std::nullopt;
  return value && *value <= std::numeric_limits<int>::max()
             ? std::optional(static_cast<int>(*value))
             : std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const auto first = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

std::optional<Streams> read_digit(std::string_view text) {
  const auto value = read_number(text);
  return text.size() == 1 && value && *value <= static_cast<int>(kBoth)
             ? std::optional(static_cast<Streams>(*value))
             : std::nullopt;
}

struct Range {
  int first = 0;
  int last = 0;
};

/// `N` or `FIRST-LAST`.
std::optional<Range> read_range(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = read_number(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : read_number(text.substr(dash + 1));
  return first && last && *first <= *last ? std::optional(Range{*first, *last}) : std::nullopt;
}

/// Unlike `plugins::split`, an empty text or end is an entry too.
std::vector<std::string_view> entries_of(std::string_view text) {
  std::vector<std::string_view> entries;
  for (auto comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    entries.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  entries.push_back(text);
  return entries;
}

struct ConfKey {
  std::string_view name;
  enum Kind { seconds, count, boolean, store } kind;
};

constexpr std::array kConfKeys = {
    ConfKey{"timeout", ConfKey::seconds},
    ConfKey{"join_timeout", ConfKey::seconds},
    ConfKey{"last_call_timeout", ConfKey::seconds},
    ConfKey{"close_timeout", ConfKey::seconds},
    ConfKey{"heartbeat_timeout", ConfKey::seconds},
    ConfKey{"keep_alive_interval", ConfKey::seconds},
    ConfKey{"read_timeout", ConfKey::seconds},
    ConfKey{"keep_alive_max_attempt", ConfKey::count},
    ConfKey{"is_host", ConfKey::boolean},
    ConfKey{"store_type", ConfKey::store},
};

/// What is wrong with the value, or nothing.
std::string expected_conf_value(const ConfKey& key, const std::string& value) {
  const std::string name(key.name);
  const auto number = read_number(value);
  switch (key.kind) {
    case ConfKey::seconds: return number && *number > 0 ? "" : name + "=SECONDS, at least 1";
    case ConfKey::count: return number && *number > 0 ? "" : name + "=NUMBER, at least 1";
    case ConfKey::boolean: return plugins::parse_boolean(value) ? "" : name + "=true or false";
    case ConfKey::store: return value == "tcp" ? "" : name + "=tcp: machines meet over the network";
  }
  return {};
}

std::string unknown_conf_key(const std::string& where, std::string_view key) {
  std::vector<std::string_view> known;
  for (const ConfKey& each : kConfKeys) {
    known.push_back(each.name);
  }
  return where + ": " + std::string(key) + " is not known and has no effect" +
         plugins::did_you_mean(key, known);
}

std::string folder_name(const std::string& run_id) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  std::string name = run_id + "_";
  for (int i = 0; i < 8; ++i) {
    name += kLetters[letter(random)];
  }
  std::ranges::replace(name, '/', '_');
  return name;
}

bool wants_files(const OutputWords& words) {
  return words.log_dir.text != "/dev/null";
}

OutputPlan routed(const std::vector<Streams>& redirects, const std::vector<Streams>& tee,
                  const std::vector<int>& shown) {
  OutputPlan output;
  for (std::size_t rank = 0; rank < redirects.size(); ++rank) {
    const bool hidden =
        !shown.empty() && std::ranges::find(shown, static_cast<int>(rank)) == shown.end();
    output.to_file.push_back(redirects[rank] | tee[rank]);
    output.to_console.push_back(hidden ? 0 : (kBoth & ~redirects[rank]) | tee[rank]);
  }
  if (std::ranges::all_of(output.to_file, [](Streams streams) { return streams == 0; })) {
    output.to_file.clear();
  }
  if (std::ranges::all_of(output.to_console, [](Streams streams) { return streams == kBoth; })) {
    output.to_console.clear();
  }
  return output;
}

fs::path log_folder(const OutputWords& words, const fs::path& working_directory,
                    const fs::path& scratch) {
  if (words.log_dir.text.empty() || !wants_files(words)) {
    return scratch;
  }
  const fs::path folder = working_directory / words.log_dir.text;
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    throw bad_value(words.log_dir, "a folder, not a file");
  }
  return folder;
}

}  // namespace

std::vector<Streams> read_streams(const Given& given, int local_world_size) {
  const auto count = static_cast<std::size_t>(local_world_size);
  if (const auto all = read_digit(given.text)) {
    return std::vector<Streams>(count, *all);
  }
  std::vector<Streams> result(count, 0);
  for (const std::string_view entry : entries_of(given.text)) {
    const auto colon = std::min(entry.find(':'), entry.size());
    const auto ranks = read_range(entry.substr(0, colon));
    const auto streams = read_digit(entry.substr(std::min(entry.size(), colon + 1)));
    if (!ranks || !streams) {
      throw bad_value(given,
                      "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or by local rank as in "
                      "0:3,1-7:2");
    }
    for (int rank = ranks->first; rank <= std::min(ranks->last, local_world_size - 1); ++rank) {
      result[static_cast<std::size_t>(rank)] = *streams;
    }
  }
  return result;
}

std::vector<int> read_local_ranks(const Given& given) {
  std::vector<int> ranks;
  if (given.text.empty()) {
    return ranks;
  }
  for (const std::string_view entry : entries_of(given.text)) {
    const auto rank = read_number(trimmed(entry));
    if (!rank) {
      throw bad_value(given, "local ranks joined by commas, as in 0,2");
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

std::vector<int> read_ranges(const Given& given) {
  constexpr int kMost = 1'000'000;
  std::vector<int> numbers;
  for (const std::string_view entry : entries_of(given.text)) {
    const auto range = read_range(trimmed(entry));
    if (!range || range->last > kMost) {
      throw bad_value(given, "numbers and ranges joined by commas, as in 0-3,8");
    }
    for (int number = range->first; number <= range->last; ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

OutputPlan plan_output(const OutputWords& words, const std::string& run_id, int local_world_size,
                       const fs::path& working_directory, const fs::path& scratch) {
  const auto streams = [&](const Given& given) {
    auto read = given.text.empty() ? std::vector<Streams>() : read_streams(given, local_world_size);
    if (read.empty() || !wants_files(words)) {
      read.assign(static_cast<std::size_t>(local_world_size), 0);
    }
    return read;
  };
  Faults faults;
  std::vector<Streams> redirects;
  std::vector<Streams> tee;
  std::vector<int> shown;
  fs::path folder;
  faults.collect([&] { redirects = streams(words.redirects); });
  faults.collect([&] { tee = streams(words.tee); });
  faults.collect([&] { shown = read_local_ranks(words.local_ranks); });
  faults.collect([&] { folder = log_folder(words, working_directory, scratch); });
  faults.raise();
  OutputPlan output = routed(redirects, tee, shown);
  output.directory = (folder.lexically_normal() / folder_name(run_id)).string();
  output.keeps_directory = folder != scratch || !output.to_file.empty();
  return output;
}

std::vector<std::string> read_rendezvous_conf(const Given& given, RendezvousPlan& plan) {
  const bool elastic = plan.backend == RendezvousPlan::Backend::c10d;
  plan.join_timeout = elastic ? kElasticJoinTimeout : kStaticJoinTimeout;
  std::vector<std::string> notices;
  Faults faults;
  if (trimmed(given.text).empty()) {
    return notices;
  }
  for (const std::string_view entry : entries_of(given.text)) {
    const auto equals = std::min(entry.find('='), entry.size());
    const std::string_view key = trimmed(entry.substr(0, equals));
    const std::string value(trimmed(entry.substr(std::min(entry.size(), equals + 1))));
    const auto known = std::ranges::find(kConfKeys, key, &ConfKey::name);
    if (key.empty() || value.empty()) {
      faults.add(bad_value(given, "KEY=VALUE joined by commas, as in timeout=60").what());
    } else if (known == kConfKeys.end()) {
      notices.push_back(unknown_conf_key(given.where, key));
    } else if (const auto expected = expected_conf_value(*known, value); !expected.empty()) {
      faults.add(bad_value({given.where, std::string(entry)}, expected).what());
    } else if (key == (elastic ? "join_timeout" : "timeout")) {
      plan.join_timeout = std::chrono::seconds(*read_number(value));
    } else if (elastic && key == "last_call_timeout") {
      plan.last_call_timeout = std::chrono::seconds(*read_number(value));
    } else if (key == "timeout" || key == "join_timeout") {
      notices.push_back(
          given.where + ": " + std::string(key) + " has no effect with " +
          (elastic ? "c10d, which reads join_timeout" : "static, which reads timeout"));
    }
  }
  faults.raise();
  return notices;
}

Endpoint read_endpoint(const Given& given) {
  const auto bad = [&] { return bad_value(given, "HOST, HOST:PORT or [IPv6 address]:PORT"); };
  const std::string text(trimmed(given.text));
  const bool bracketed = text.starts_with('[');
  const auto closing = bracketed ? text.find(']') : 0;
  const auto colon = closing == std::string::npos ? closing : text.find(':', closing);
  Endpoint endpoint;
  if (bracketed) {
    if (closing == std::string::npos || std::min(colon, text.size()) != closing + 1) {
      throw bad();
    }
    endpoint.host = text.substr(1, closing - 1);
  } else {
    endpoint.host = text.substr(0, colon);
  }
  if (colon != std::string::npos) {
    const auto port = read_number(std::string_view(text).substr(colon + 1));
    if (!port || *port > std::numeric_limits<std::uint16_t>::max()) {
      throw bad();
    }
    endpoint.port = static_cast<std::uint16_t>(*port);
  }
  if (endpoint.host.empty() || endpoint.host.find_first_of(" \t/[]") != std::string::npos) {
    throw bad();
  }
  return endpoint;
}

MachineRange read_machine_range(const Given& given) {
  const auto colon = given.text.find(':');
  const auto least = read_number(std::string_view(given.text).substr(0, colon));
  const auto most = colon == std::string::npos
                        ? least
                        : read_number(std::string_view(given.text).substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    throw bad_value(given, "N or MIN:MAX machines with 1 <= MIN <= MAX");
  }
  return {*least, *most};
}

std::string signal_word(int signal) {
  const char* word = ::sigabbrev_np(signal);
  return word == nullptr ? std::to_string(signal) : "SIG" + std::string(word);
}

std::vector<int> read_signals(const Given& given) {
  std::vector<int> signals;
  for (const std::string_view entry : entries_of(given.text)) {
    const std::string_view word = trimmed(entry);
    int signal = 1;
    while (signal < NSIG && word != signal_word(signal)) {
      ++signal;
    }
    if (signal == NSIG || signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD) {
      throw bad_value(given, "signals that a process can wait for, as in SIGTERM,SIGUSR1");
    }
    signals.push_back(signal);
  }
  return signals;
}

void check_own_gpus(const std::string& where, int local_world_size,
                    const plugins::Environment& environment) {
  const std::string list = plugins::variable(environment, "CUDA_VISIBLE_DEVICES");
  const auto entries = static_cast<int>(plugins::split(list, ',').size());
  if (!list.empty() && entries < local_world_size) {
    throw Error(Errc::config, where + " needs a GPU for each of " +
                                  std::to_string(local_world_size) +
                                  " workers, but CUDA_VISIBLE_DEVICES is \"" + list + "\"");
  }
}

std::string random_run_id() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::uniform_int_distribution<std::size_t> digit(0, kDigits.size() - 1);
  std::string id = "xxxxxxxx-xxxx-4xxx-8xxx-xxxxxxxxxxxx";  // version 4, variant 1
  for (char& c : id) {
    c = c == 'x' ? kDigits[digit(random)] : c;
  }
  return id;
}

}  // namespace acc::launcher
