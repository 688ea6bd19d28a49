#include "acc/rendezvous/static_rendezvous.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = AsyncClient::Milliseconds;

// What the key "ready" says when the job may start; else it holds, in lines, how many machines
// should hear that it may not, and why.
constexpr std::string_view kReady = "ready";
// How long a refused machine stays for the others to hear it too: machine 0 takes the store along.
constexpr Milliseconds kRefusalPause{2'000};

std::string key(std::string_view run_id, std::string_view name) {
  return fmt::format("acc/{}/{}", run_id, name);
}

std::vector<std::string> machine_keys(std::string_view run_id, int num_machines) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < num_machines; ++rank) {
    keys.push_back(key(run_id, fmt::format("machines/{}", rank)));
  }
  return keys;
}

/// Splits off the text up to the next newline.
std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

int take_int(std::string_view& text) {
  const std::string_view line = take_line(text);
  int value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || end != line.data() + line.size()) {
    throw Error(Errc::protocol,
                fmt::format("another machine wrote '{}' where a number belongs: do all machines "
                            "run the same acclaunch?",
                            line));
  }
  return value;
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string encode(const Machine& machine) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", machine.machine_rank, machine.local_world_size,
                     machine.pid, one_line(machine.host), one_line(machine.address));
}

Machine decode_machine(std::string_view text) {
  Machine machine;
  machine.machine_rank = take_int(text);
  machine.local_world_size = take_int(text);
  machine.pid = take_int(text);
  machine.host = take_line(text);
  machine.address = take_line(text);
  return machine;
}

std::string encode(const JobEnd& end) {
  return fmt::format("{}\n{}\n{}", end.machine_rank, end.exit_status, one_line(end.reason));
}

JobEnd decode_end(std::string_view text) {
  JobEnd end;
  end.machine_rank = take_int(text);
  end.exit_status = take_int(text);
  end.reason = take_line(text);
  return end;
}

std::string describe(const Machine& machine) {
  return fmt::format("machine {} ({}, pid {})", machine.machine_rank, machine.host, machine.pid);
}

/// What all machines must have been told alike, and who says so.
struct Terms {
  int num_machines = 0;
  int num_processes = 0;
  Machine from;
};

std::string encode(const Terms& terms) {
  return fmt::format("{}\n{}\n{}", terms.num_machines, terms.num_processes, encode(terms.from));
}

Terms decode_terms(std::string_view text) {
  Terms terms;
  terms.num_machines = take_int(text);
  terms.num_processes = take_int(text);
  terms.from = decode_machine(text);
  return terms;
}

/// Why two machines cannot be of one job, or "".
std::string disagreement(const Terms& mine, const Terms& other) {
  const auto differ = [&](std::string_view flag, int my_value, int other_value) {
    return fmt::format("{} was started with {} {}, {} with {} {}: start all machines with the same",
                       describe(mine.from), flag, my_value, describe(other.from), flag,
                       other_value);
  };
  if (mine.num_machines != other.num_machines) {
    return differ("--num_machines", mine.num_machines, other.num_machines);
  }
  if (mine.num_processes != other.num_processes) {
    return differ("--num_processes", mine.num_processes, other.num_processes);
  }
  return "";
}

bool is_dead_neighbour(const Machine& machine, const Machine& me) {
  return machine.host == me.host && kill(machine.pid, 0) != 0 && errno == ESRCH;
}

/// One machine's attempt to join; its steps in order.
class Joining {
 public:
  Joining(AsyncClient& client, std::string run_id, Terms terms, Milliseconds timeout)
      : client_(client), run_id_(std::move(run_id)), terms_(std::move(terms)), timeout_(timeout) {}

  asio::awaitable<void> agree() {
    const std::string mine = encode(terms_);
    const std::string found = co_await client_.compare_set(key(run_id_, "terms"), "", mine);
    if (const std::string reason = disagreement(terms_, decode_terms(found)); !reason.empty()) {
      co_await refuse(reason);
    }
  }

  asio::awaitable<void> claim_rank() {
    const std::string name = machine_keys(run_id_, terms_.num_machines).at(rank());
    const std::string mine = encode(terms_.from);
    std::string found = co_await client_.compare_set(name, "", mine);
    if (found == mine) {
      co_return;
    }
    const Machine other = decode_machine(found);
    if (is_dead_neighbour(other, terms_.from)) {
      const bool decided = co_await client_.check(ready_keys());
      if (!decided) {
        found = co_await client_.compare_set(name, found, mine);
      }
    }
    if (found != mine) {
      co_await refuse(
          fmt::format("--machine_rank {} is claimed twice: on {} (pid {}) and on {} "
                      "(pid {}): give every machine its own",
                      rank(), other.host, other.pid, terms_.from.host, terms_.from.pid));
    }
  }

  asio::awaitable<std::vector<Machine>> await_all(AsyncClient::Progress progress,
                                                  Milliseconds interval) {
    const auto absent = co_await missing();
    if (absent.empty()) {
      co_await client_.compare_set(ready_key(), "", std::string(kReady));
    }
    while (true) {
      const auto left = timeout_ - elapsed();
      if (left <= Milliseconds::zero()) {
        const std::string message = co_await timeout_message();
        throw Error(Errc::timeout, message);
      }
      const bool decided = co_await client_.check(ready_keys());
      if (decided) {
        break;
      }
      if (progress) {
        const std::string message = co_await progress_message();
        progress(message);
      }
      const bool released = co_await client_.wait(ready_keys(), std::min(left, interval));
      if (released) {
        break;
      }
    }
    const std::string outcome = co_await client_.get(ready_key());
    if (outcome != kReady) {
      co_await fail(outcome);
    }
    co_return co_await machines();
  }

 private:
  [[nodiscard]] std::size_t rank() const {
    return static_cast<std::size_t>(terms_.from.machine_rank);
  }
  [[nodiscard]] std::string ready_key() const { return key(run_id_, "ready"); }
  // A function, since g++ 12 cannot compile a braced list of strings inside a coroutine. For its
  // sake, too, no co_await stands inside a condition here.
  [[nodiscard]] std::vector<std::string> ready_keys() const { return {ready_key()}; }
  [[nodiscard]] Milliseconds elapsed() const {
    return std::chrono::floor<Milliseconds>(Clock::now() - start_);
  }

  /// Tells everybody who waits, then fails here.
  asio::awaitable<void> refuse(std::string reason) {
    const auto absent = co_await missing();
    const auto listeners = static_cast<std::size_t>(terms_.num_machines) - absent.size() + 1;
    std::string outcome = fmt::format("{}\n{}", listeners, reason);
    const std::string found = co_await client_.compare_set(ready_key(), "", outcome);
    if (found == outcome) {
      co_await fail(std::move(outcome));
    }
    throw Error(Errc::config, reason);
  }

  asio::awaitable<void> fail(std::string outcome) {
    std::string_view text = outcome;
    const int listeners = take_int(text);
    co_await client_.barrier(key(run_id_, "refused"), listeners, kRefusalPause);
    throw Error(Errc::config, std::string(text));
  }

  asio::awaitable<std::vector<int>> missing() {
    const auto found = co_await client_.multi_get(machine_keys(run_id_, terms_.num_machines));
    std::vector<int> ranks;
    for (std::size_t each = 0; each < found.size(); ++each) {
      if (found[each].empty()) {
        ranks.push_back(static_cast<int>(each));
      }
    }
    co_return ranks;
  }

  asio::awaitable<std::vector<Machine>> machines() {
    const auto found = co_await client_.multi_get(machine_keys(run_id_, terms_.num_machines));
    std::vector<Machine> all;
    for (const std::string& text : found) {
      all.push_back(decode_machine(text));
    }
    co_return all;
  }

  asio::awaitable<std::string> progress_message() {
    const auto ranks = co_await missing();
    co_return fmt::format("waiting for machines {} of {} at {}, {} s of {} s",
                          fmt::join(ranks, ","), terms_.num_machines, client_.where(),
                          std::chrono::floor<std::chrono::seconds>(elapsed()).count(),
                          std::chrono::ceil<std::chrono::seconds>(timeout_).count());
  }

  asio::awaitable<std::string> timeout_message() {
    const auto ranks = co_await missing();
    co_return fmt::format(
        "machines {} of {} did not come to {} within {} s: start acclaunch there "
        "with the same flags and --machine_rank {}",
        fmt::join(ranks, ","), terms_.num_machines, client_.where(),
        std::chrono::ceil<std::chrono::seconds>(timeout_).count(), fmt::join(ranks, " or "));
  }

  AsyncClient& client_;
  std::string run_id_;
  Terms terms_;
  Milliseconds timeout_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

asio::awaitable<std::vector<Machine>> join(AsyncClient& client, std::string run_id, Machine me,
                                           int num_machines, int num_processes,
                                           Milliseconds timeout, AsyncClient::Progress progress,
                                           Milliseconds interval) {
  if (me.machine_rank < 0 || me.machine_rank >= num_machines) {
    throw Error(Errc::config, fmt::format("--machine_rank {}, expected 0 to {} with --num_machines "
                                          "{}",
                                          me.machine_rank, num_machines - 1, num_machines));
  }
  Joining joining(client, std::move(run_id), {num_machines, num_processes, std::move(me)}, timeout);
  co_await joining.agree();
  co_await joining.claim_rank();
  co_return co_await joining.await_all(std::move(progress), interval);
}

asio::awaitable<JobEnd> announce_end(AsyncClient& client, std::string run_id, JobEnd end) {
  const std::string found = co_await client.compare_set(key(run_id, "end"), "", encode(end));
  co_return decode_end(found);
}

asio::awaitable<JobEnd> await_end(AsyncClient& client, std::string run_id) {
  const std::string found = co_await client.get(key(run_id, "end"));
  co_return decode_end(found);
}

asio::awaitable<bool> finish(AsyncClient& client, std::string run_id, int num_machines,
                             std::optional<Milliseconds> timeout) {
  return client.barrier(key(run_id, "finish"), num_machines, timeout);
}

}  // namespace acc::rendezvous
