// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "rounds/agents.hpp"
#include "rounds/job_event.hpp"
#include "rounds/messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

// The byte format of messages (docs/protocol.md), and of events and jobs in the server's log.
namespace acc::rendezvous::rounds {

static_assert(std::endian::native == std::endian::little, "the protocol is little-endian");

// One list of fields per struct drives both encoding and decoding, so the two cannot differ. The
// byte format of each type is described in docs/protocol.md.

/// Fields of a struct in wire order. Empty for messages without fields.
template <typename Struct>
constexpr std::tuple<> kFields;

template <>
inline constexpr auto kFields<Machine> = std::tuple{&Machine::machine_rank,
                                                    &Machine::host,
                                                    &Machine::address,
                                                    &Machine::store_port,
                                                    &Machine::local_world_size,
                                                    &Machine::pid,
                                                    &Machine::serves,
                                                    &Machine::secret,
                                                    &Machine::role};
template <>
inline constexpr auto kFields<Terms> =
    std::tuple{&Terms::ranks_are_given, &Terms::num_machines, &Terms::min_machines,
               &Terms::num_processes,   &Terms::max_restarts, &Terms::agreed};
template <>
inline constexpr auto kFields<JobTimes> =
    std::tuple{&JobTimes::join, &JobTimes::last_call, &JobTimes::heartbeat, &JobTimes::settle,
               &JobTimes::close};
template <>
inline constexpr auto kFields<AttemptEnd> =
    std::tuple{&AttemptEnd::machine_rank, &AttemptEnd::host,  &AttemptEnd::exit_status,
               &AttemptEnd::restarts,     &AttemptEnd::cause, &AttemptEnd::reason};
template <>
inline constexpr auto kFields<Round> = std::tuple{
    &Round::round,          &Round::restart_count, &Round::machine_rank, &Round::local_world_sizes,
    &Round::store_host,     &Round::store_port,    &Round::secret,       &Round::first_role_rank,
    &Round::role_world_size};
template <>
inline constexpr auto kFields<ReportedMachine> =
    std::tuple{&ReportedMachine::machine_rank, &ReportedMachine::host, &ReportedMachine::report};
template <>
inline constexpr auto kFields<RoundResult> =
    std::tuple{&RoundResult::end, &RoundResult::machines, &RoundResult::next};
template <>
inline constexpr auto kFields<Enter> =
    std::tuple{&Enter::run_id,    &Enter::terms,         &Enter::times,
               &Enter::machine,   &Enter::rounds_before, &Enter::restarts_before,
               &Enter::only_asks, &Enter::agent,         &Enter::round};
template <>
inline constexpr auto kFields<Rejoin> = std::tuple{&Rejoin::store_port};
template <>
inline constexpr auto kFields<End> = std::tuple{&End::end};
template <>
inline constexpr auto kFields<Report> = std::tuple{&Report::failed, &Report::text};
template <>
inline constexpr auto kFields<TrainingMetrics> =
    std::tuple{&TrainingMetrics::step,          &TrainingMetrics::loss,
               &TrainingMetrics::learning_rate, &TrainingMetrics::gradient_norm,
               &TrainingMetrics::tokens_per_s,  &TrainingMetrics::step_s,
               &TrainingMetrics::compute_s,     &TrainingMetrics::gather_s,
               &TrainingMetrics::reduce_s,      &TrainingMetrics::wait_s,
               &TrainingMetrics::memory,        &TrainingMetrics::values};
template <>
inline constexpr auto kFields<RankStatus> = std::tuple{&RankStatus::rank,
                                                       &RankStatus::local_rank,
                                                       &RankStatus::pid,
                                                       &RankStatus::state,
                                                       &RankStatus::metrics,
                                                       &RankStatus::report_age,
                                                       &RankStatus::resident_bytes,
                                                       &RankStatus::cpu_percent,
                                                       &RankStatus::gpu_percent,
                                                       &RankStatus::gpu_bytes,
                                                       &RankStatus::collective,
                                                       &RankStatus::waiting_for,
                                                       &RankStatus::last_stderr_lines};
template <>
inline constexpr auto kFields<Status> = std::tuple{&Status::ranks};
template <>
inline constexpr auto kFields<FailureReport> = std::tuple{&FailureReport::json};
template <>
inline constexpr auto kFields<Welcome> =
    std::tuple{&Welcome::beat_interval, &Welcome::silence_limit, &Welcome::recovers,
               &Welcome::status_interval};
template <>
inline constexpr auto kFields<Waiting> = std::tuple{&Waiting::text};
template <>
inline constexpr auto kFields<Formed> = std::tuple{&Formed::round};
template <>
inline constexpr auto kFields<Ends> = std::tuple{&Ends::end};
template <>
inline constexpr auto kFields<Settled> = std::tuple{&Settled::round_result};
template <>
inline constexpr auto kFields<Dropped> = std::tuple{&Dropped::why, &Dropped::reason};
template <>
inline constexpr auto kFields<Elsewhere> = std::tuple{&Elsewhere::leader};
template <>
inline constexpr auto kFields<Lost> = std::tuple{&Lost::why};

/// Largest valid enumerator: a received byte beyond it is refused.
template <typename Enum>
constexpr Enum kLast{};
template <>
inline constexpr auto kLast<AttemptEnd::Cause> = AttemptEnd::Cause::membership;
template <>
inline constexpr auto kLast<RoundResult::Next> = RoundResult::Next::next_round;
template <>
inline constexpr auto kLast<Dropped::Why> = Dropped::Why::lost;
template <>
inline constexpr auto kLast<Agent::State> = Agent::State::done;
template <>
inline constexpr auto kLast<RankStatus::State> = RankStatus::State::stopped;

/// A struct that lists its fields in a static function `code(coder, self)`, because they are
/// private or because more than its fields must be restored.
template <typename T, typename Coder>
concept CodesItself = requires(Coder coder, T value) {
  T::code(coder, value);
};

/// Encodes values: appends their bytes to `out`.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  template <typename T>
  requires std::is_integral_v<T>
  void put(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  template <typename T>
  requires std::is_enum_v<T>
  void put(T value) { put(static_cast<std::uint8_t>(value)); }
  void put(double value) { put(std::bit_cast<std::uint64_t>(value)); }
  void put(JobTimes::Milliseconds value) { put(std::int64_t{value.count()}); }
  void put(const std::string& text) {
    put_count(text.size());
    out_.append(text);
  }
  template <typename T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) {
      put(*value);
    }
  }
  void put(const std::vector<ReportedMachine>& words) {
    put_count(words.size());
    for (const ReportedMachine& word : words) {
      put(word);
    }
  }
  void put(const Agreed& agreed) {
    put_count(agreed.size());
    for (const auto& [name, value] : agreed) {
      put(name);
      put(value);
    }
  }
  /// World sizes are sent as runs of equal numbers. Nearly always there is one run, so the message
  /// does not grow with the number of machines.
  void put(const std::vector<int>& numbers) {
    const std::size_t count_at = out_.size();
    std::uint32_t num_runs = 0;
    put(num_runs);
    for (auto run = numbers.begin(); run != numbers.end(); ++num_runs) {
      const auto end =
          std::find_if(run, numbers.end(), [run](int number) { return number != *run; });
      put_count(static_cast<std::size_t>(end - run));
      put(*run);
      run = end;
    }
    std::memcpy(out_.data() + count_at, &num_runs, sizeof num_runs);
  }
  void put(Time::duration value) { put(std::int64_t{value.count()}); }
  void put(Time value) { put(value.time_since_epoch()); }
  template <typename... Types>
  void put(const std::variant<Types...>& value) {
    put(static_cast<std::uint8_t>(value.index()));
    std::visit([this](const auto& held) { put(held); }, value);
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    put_list(list);
  }
  template <typename T>
  void put(const std::set<T>& list) {
    put_list(list);
  }
  template <typename Key, typename T>
  void put(const std::map<Key, T>& list) {
    put_list(list);
  }
  template <typename First, typename Second>
  void put(const std::pair<First, Second>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename... Types>
  void put(const std::tuple<Types...>& values) {
    std::apply([this](const auto&... each) { (put(each), ...); }, values);
  }
  template <typename T>
  requires std::is_class_v<T>
  void put(const T& value) {
    if constexpr (CodesItself<const T, Writer&>) {
      T::code(*this, value);
    } else {
      static_assert(std::is_empty_v<T> || std::tuple_size_v<decltype(kFields<T>)> > 0);
      std::apply([&](auto... field) { (put(value.*field), ...); }, kFields<T>);
    }
  }
  /// Appends several values.
  template <typename... Types>
  void operator()(const Types&... values) {
    (put(values), ...);
  }

 private:
  template <typename List>
  void put_list(const List& list) {
    put_count(list.size());
    for (const auto& each : list) {
      put(each);
    }
  }
  void put_count(std::size_t count) { put(static_cast<std::uint32_t>(count)); }

  std::string& out_;
};

/// Decodes values from the bytes of one frame. Throws Error(protocol) for a value that does not fit
/// the frame. Counts are checked before memory is allocated for them.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_integral_v<T>
  void take(T& value) { std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value); }
  void take(bool& value) { value = take_byte(1) != 0; }
  void take(double& value) {
    std::uint64_t bits = 0;
    take(bits);
    value = std::bit_cast<double>(bits);
  }
  template <typename T>
  requires std::is_enum_v<T>
  void take(T& value) { value = static_cast<T>(take_byte(static_cast<std::uint8_t>(kLast<T>))); }
  void take(JobTimes::Milliseconds& value) {
    std::int64_t count = 0;
    take(count);
    value = JobTimes::Milliseconds(count);
  }
  void take(std::string& text) { text = take_bytes(take_count()); }
  template <typename T>
  void take(std::optional<T>& value) {
    bool is_there = false;
    take(is_there);
    if (is_there) {
      take(value.emplace());
    }
  }
  void take(std::vector<ReportedMachine>& words) {
    const std::uint32_t count = take_count();
    check_machines(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      take(words.emplace_back());
    }
  }
  void take(Agreed& agreed) {
    const std::uint32_t count = take_count();
    if (count > kMaxAgreed) {
      throw Error(Errc::protocol, fmt::format("a message has {} values to agree on, at most {} are "
                                              "possible",
                                              count, kMaxAgreed));
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      auto& [name, value] = agreed.emplace_back();
      take(name);
      take(value);
    }
  }
  void take(std::vector<int>& numbers) {
    const std::uint32_t num_runs = take_count();
    for (std::uint32_t i = 0; i < num_runs; ++i) {
      const std::uint32_t count = take_count();
      int number = 0;
      take(number);
      check_machines(numbers.size() + count);
      numbers.insert(numbers.end(), count, number);
    }
  }
  void take(Time::duration& value) {
    std::int64_t count = 0;
    take(count);
    value = Time::duration(count);
  }
  void take(Time& value) {
    Time::duration since{};
    take(since);
    value = Time(since);
  }
  template <typename... Types>
  void take(std::variant<Types...>& value) {
    take_alternative(take_byte(sizeof...(Types) - 1), value);
  }
  /// Takes the value of a variant whose index is known.
  template <typename... Types>
  void take_alternative(std::size_t index, std::variant<Types...>& value) {
    emplace(value, index, std::index_sequence_for<Types...>());
    std::visit([this](auto& held) { take(held); }, value);
  }
  template <typename T>
  void take(std::vector<T>& list) {
    take_list<T>([&](T&& each) { list.push_back(std::move(each)); });
  }
  template <typename T>
  void take(std::set<T>& list) {
    take_list<T>([&](T&& each) { list.insert(std::move(each)); });
  }
  template <typename Key, typename T>
  void take(std::map<Key, T>& list) {
    take_list<std::pair<Key, T>>([&](auto&& each) { list.insert(std::move(each)); });
  }
  template <typename First, typename Second>
  void take(std::pair<First, Second>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename... Types>
  void take(std::tuple<Types...>& values) {
    std::apply([this](auto&... each) { (take(each), ...); }, values);
  }
  template <typename T>
  requires std::is_class_v<T>
  void take(T& value) {
    if constexpr (CodesItself<T, Reader&>) {
      T::code(*this, value);
    } else {
      static_assert(std::is_empty_v<T> || std::tuple_size_v<decltype(kFields<T>)> > 0);
      std::apply([&](auto... field) { (take(value.*field), ...); }, kFields<T>);
    }
  }
  /// Takes several values.
  template <typename... Types>
  void operator()(Types&... values) {
    (take(values), ...);
  }

  std::uint8_t take_byte(std::uint8_t last) {
    std::uint8_t value = 0;
    take(value);
    if (value > last) {
      throw Error(Errc::protocol, fmt::format("a byte is {} where 0 to {} was expected: do all "
                                              "machines run the same acclaunch?",
                                              value, last));
    }
    return value;
  }
  /// Throws if bytes of the frame are left over: the sender has other fields.
  void expect_end() const {
    if (!bytes_.empty()) {
      throw Error(Errc::protocol,
                  fmt::format("a message is {} bytes longer than its fields", bytes_.size()));
    }
  }

 private:
  template <typename Variant, std::size_t... Index>
  static void emplace(Variant& value, std::size_t index, std::index_sequence<Index...>) {
    ((Index == index ? void(value.template emplace<Index>()) : void()), ...);
  }
  template <typename T, typename Add>
  void take_list(Add add) {
    for (std::uint32_t left = take_count(); left > 0; --left) {
      T each{};
      take(each);
      add(std::move(each));
    }
  }
  std::uint32_t take_count() {
    std::uint32_t count = 0;
    take(count);
    return count;
  }
  std::string_view take_bytes(std::size_t size) {
    if (size > bytes_.size()) {
      throw Error(Errc::protocol, fmt::format("a field needs {} bytes, its message has {} left",
                                              size, bytes_.size()));
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  static void check_machines(std::size_t count) {
    if (count > kMaxMachines) {
      throw Error(
          Errc::protocol,
          fmt::format("a message names {} machines, at most {} are possible", count, kMaxMachines));
    }
  }

  std::string_view bytes_;
};

}  // namespace acc::rendezvous::rounds
