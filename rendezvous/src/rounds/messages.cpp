// SPDX-License-Identifier: Apache-2.0
#include "rounds/messages.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

namespace acc::rendezvous::rounds {
namespace {

static_assert(std::endian::native == std::endian::little, "the protocol is little-endian");

// One list of fields per struct drives both encoding and decoding, so the two cannot differ. The
// byte format of each type is described in docs/protocol.md.

/// Fields of a struct in wire order. Empty for messages without fields.
template <typename Struct>
constexpr std::tuple<> kFields;

template <>
constexpr auto kFields<Machine> =
    std::tuple{&Machine::machine_rank,     &Machine::host, &Machine::address, &Machine::store_port,
               &Machine::local_world_size, &Machine::pid,  &Machine::serves,  &Machine::secret};
template <>
constexpr auto kFields<Terms> =
    std::tuple{&Terms::ranks_are_given, &Terms::num_machines, &Terms::min_machines,
               &Terms::num_processes,   &Terms::max_restarts, &Terms::agreed};
template <>
constexpr auto kFields<JobTimes> =
    std::tuple{&JobTimes::join, &JobTimes::last_call, &JobTimes::heartbeat, &JobTimes::settle,
               &JobTimes::close};
template <>
constexpr auto kFields<AttemptEnd> =
    std::tuple{&AttemptEnd::machine_rank, &AttemptEnd::host,  &AttemptEnd::exit_status,
               &AttemptEnd::restarts,     &AttemptEnd::cause, &AttemptEnd::reason};
template <>
constexpr auto kFields<Round> = std::tuple{
    &Round::round,      &Round::restart_count, &Round::machine_rank, &Round::local_world_sizes,
    &Round::store_host, &Round::store_port,    &Round::secret};
template <>
constexpr auto kFields<ReportedMachine> =
    std::tuple{&ReportedMachine::machine_rank, &ReportedMachine::host, &ReportedMachine::report};
template <>
constexpr auto kFields<RoundResult> =
    std::tuple{&RoundResult::end, &RoundResult::machines, &RoundResult::next};
template <>
constexpr auto kFields<Enter> =
    std::tuple{&Enter::run_id,        &Enter::terms,           &Enter::times,    &Enter::machine,
               &Enter::rounds_before, &Enter::restarts_before, &Enter::only_asks};
template <>
constexpr auto kFields<Rejoin> = std::tuple{&Rejoin::store_port};
template <>
constexpr auto kFields<End> = std::tuple{&End::end};
template <>
constexpr auto kFields<Report> = std::tuple{&Report::failed, &Report::text};
template <>
constexpr auto kFields<Welcome> = std::tuple{&Welcome::beat_interval, &Welcome::silence_limit};
template <>
constexpr auto kFields<Waiting> = std::tuple{&Waiting::text};
template <>
constexpr auto kFields<Formed> = std::tuple{&Formed::round};
template <>
constexpr auto kFields<Ends> = std::tuple{&Ends::end};
template <>
constexpr auto kFields<Settled> = std::tuple{&Settled::round_result};
template <>
constexpr auto kFields<Dropped> = std::tuple{&Dropped::why, &Dropped::reason};

/// Largest valid enumerator: a received byte beyond it is refused.
template <typename Enum>
constexpr Enum kLast{};
template <>
constexpr auto kLast<AttemptEnd::Cause> = AttemptEnd::Cause::membership;
template <>
constexpr auto kLast<RoundResult::Next> = RoundResult::Next::next_round;
template <>
constexpr auto kLast<Dropped::Why> = Dropped::Why::lost;

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
  template <typename T>
  requires std::is_class_v<T>
  void put(const T& value) {
    std::apply([&](auto... field) { (put(value.*field), ...); }, kFields<T>);
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
  template <typename T>
  requires std::is_class_v<T>
  void take(T& value) {
    std::apply([&](auto... field) { (take(value.*field), ...); }, kFields<T>);
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

/// Appends a frame: u32 length, u8 type (the index in the variant), fields.
template <typename Message>
void encode_frame(const Message& message, std::string& out) {
  const std::size_t begin = out.size();  // the length is filled in at the end
  Writer writer(out);
  writer.put(std::uint32_t{0});
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& fields) { writer.put(fields); }, message);
  const auto size = static_cast<std::uint32_t>(out.size() - begin - sizeof(std::uint32_t));
  std::memcpy(out.data() + begin, &size, sizeof size);
}

/// Returns a default-constructed message of type number `index`.
template <typename Message, std::size_t... Index>
Message message_of(std::size_t index, std::index_sequence<Index...>) {
  Message message;
  ((Index == index ? void(message.template emplace<Index>()) : void()), ...);
  return message;
}

template <typename Message>
std::optional<Message> take_frame(std::string_view& bytes, std::size_t limit) {
  constexpr std::size_t kNumTypes = std::variant_size_v<Message>;
  std::uint32_t size = 0;
  if (bytes.size() < sizeof size) {
    return std::nullopt;
  }
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size > limit) {
    throw Error(Errc::protocol,
                fmt::format("a message of {} bytes, expected 1 to {}", size, limit));
  }
  // The type is checked as soon as its byte is there, before the rest of a wrong frame is buffered.
  Reader reader(bytes.substr(sizeof size, size));
  if (bytes.size() == sizeof size) {
    return std::nullopt;
  }
  const std::uint8_t type = reader.take_byte(kNumTypes - 1);
  if (bytes.size() < sizeof size + size) {
    return std::nullopt;
  }
  auto message = message_of<Message>(type, std::make_index_sequence<kNumTypes>());
  std::visit([&](auto& fields) { reader.take(fields); }, message);
  reader.expect_end();
  check(message);
  bytes.remove_prefix(sizeof size + size);
  return message;
}

}  // namespace

void encode(const AgentMessage& message, std::string& out) {
  encode_frame(message, out);
}

void encode(const ServerMessage& message, std::string& out) {
  encode_frame(message, out);
}

std::optional<AgentMessage> take_agent_message(std::string_view& bytes, std::size_t limit) {
  return take_frame<AgentMessage>(bytes, limit);
}

std::optional<ServerMessage> take_server_message(std::string_view& bytes) {
  return take_frame<ServerMessage>(bytes, kMaxAnswerBytes);
}

}  // namespace acc::rendezvous::rounds
