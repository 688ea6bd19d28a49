// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "rounds/agents.hpp"
#include "rounds/messages.hpp"

#include <boost/pfr/core.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <ranges>
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

/// Largest valid enumerator: a received byte beyond it is refused.
template <typename Enum>
constexpr Enum kLast{};
template <>
inline constexpr auto kLast<AttemptEnd::Cause> = AttemptEnd::Cause::join;
template <>
inline constexpr auto kLast<RoundResult::Next> = RoundResult::Next::next_round;
template <>
inline constexpr auto kLast<Dropped::Why> = Dropped::Why::lost;
template <>
inline constexpr auto kLast<Agent::State> = Agent::State::done;
template <>
inline constexpr auto kLast<RankStatus::State> = RankStatus::State::stopped;

/// A struct that lists its fields in a static function `code(coder, self)`, because they are
/// private or because more than its fields must be restored. Of any other struct all fields are
/// coded, in their order.
template <typename T, typename Coder>
concept CodesItself = requires(Coder coder, T value) {
  T::code(coder, value);
};

template <typename T>
concept IsTuple = requires {
  std::tuple_size<T>::value;
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
    std::visit([this](const auto& held) { this->put(held); }, value);
  }
  template <std::ranges::sized_range List>
  void put(const List& list) {
    put_count(list.size());
    for (const auto& each : list) {
      put(each);
    }
  }
  template <typename T>
  requires(std::is_class_v<T> && !std::ranges::range<T>) void put(const T& value) {
    if constexpr (CodesItself<const T, Writer&>) {
      T::code(*this, value);
    } else if constexpr (IsTuple<T>) {
      std::apply(*this, value);
    } else {
      boost::pfr::for_each_field(value, [this](const auto& field) { this->put(field); });
    }
  }
  /// Appends several values.
  template <typename... Types>
  void operator()(const Types&... values) {
    (put(values), ...);
  }

 private:
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
    std::visit([this](auto& held) { this->take(held); }, value);
  }
  template <typename T>
  void take(std::vector<T>& list) {
    const std::uint32_t count = take_count();
    if constexpr (std::is_same_v<T, ReportedMachine>) {
      check_machines(count);
    } else if constexpr (std::is_same_v<T, Agreed::value_type>) {
      check_agreed(count);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      take(list.emplace_back());
    }
  }
  template <typename T>
  void take(std::set<T>& list) {
    take_into<T>(list);
  }
  template <typename Key, typename T>
  void take(std::map<Key, T>& list) {
    take_into<std::pair<Key, T>>(list);
  }
  template <typename T>
  requires std::is_class_v<T>
  void take(T& value) {
    if constexpr (CodesItself<T, Reader&>) {
      T::code(*this, value);
    } else if constexpr (IsTuple<T>) {
      std::apply(*this, value);
    } else {
      boost::pfr::for_each_field(value, [this](auto& field) { this->take(field); });
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
  template <typename T, typename List>
  void take_into(List& list) {
    for (std::uint32_t left = take_count(); left > 0; --left) {
      T each{};
      take(each);
      list.insert(std::move(each));
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
  static void check_agreed(std::size_t count) {
    if (count > kMaxAgreed) {
      throw Error(Errc::protocol, fmt::format("a message has {} values to agree on, at most {} are "
                                              "possible",
                                              count, kMaxAgreed));
    }
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

template <typename... Types>
std::string encoded_all(const Types&... values) {
  std::string bytes;
  Writer writer(bytes);
  writer(values...);
  return bytes;
}

/// Decodes all of `bytes`.
template <typename... Types>
void decode_all(std::string_view bytes, Types&... values) {
  Reader reader(bytes);
  reader(values...);
  reader.expect_end();
}

}  // namespace acc::rendezvous::rounds
