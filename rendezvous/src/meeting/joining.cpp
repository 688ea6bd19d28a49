#include "meeting/joining.hpp"

#include "acc/base/error.hpp"
#include "records.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;

namespace {

using Milliseconds = AsyncClient::Milliseconds;

// What the key "ready" begins with when the job may start; its machines follow, so that nobody can
// leave any more. Else it holds, in lines, how many machines should hear that it may not, and why.
constexpr std::string_view kReady = "ready\n";
// How long a refused machine stays for the others to hear it too: machine 0 takes the store along.
constexpr Milliseconds kRefusalPause{2'000};

std::string encode_terms(const Terms& terms, const Machine& from) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", terms.num_machines, terms.min_machines,
                     terms.num_processes, terms.max_restarts, encode(from));
}

/// Why two machines cannot be of one job, or "". `text` are the terms of the other one.
std::string disagreement(const Terms& mine, const Machine& me, std::string_view text) {
  Terms other;
  other.num_machines = take_int(text);
  other.min_machines = take_int(text);
  other.num_processes = take_int(text);
  other.max_restarts = take_int(text);
  const Machine from = take_machine(text);
  const auto differ = [&](std::string_view what, int my_value, int other_value) {
    return fmt::format("{} was started with {} {}, {} with {} {}: start all machines with the same",
                       describe(me), what, my_value, describe(from), what, other_value);
  };
  if (mine.num_machines != other.num_machines) {
    return differ("--num_machines", mine.num_machines, other.num_machines);
  }
  if (mine.min_machines != other.min_machines) {
    return differ("a minimum of machines of", mine.min_machines, other.min_machines);
  }
  if (mine.num_processes != other.num_processes) {
    return differ("--num_processes", mine.num_processes, other.num_processes);
  }
  if (mine.max_restarts != other.max_restarts) {
    return differ("--max_restarts", mine.max_restarts, other.max_restarts);
  }
  return "";
}

bool is_dead_neighbour(const Machine& machine, const Machine& me) {
  return machine.pid_space == me.pid_space && kill(machine.pid, 0) != 0 && errno == ESRCH;
}

Machine decode_machine(std::string_view text) {
  return take_machine(text);
}

}  // namespace

std::string own_pid_space() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code hidden;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", hidden).string();
}

std::string wrong_total(const std::vector<Machine>& machines, int num_processes) {
  int total = 0;
  std::string counts;
  for (const Machine& machine : machines) {
    total += machine.local_world_size;
    counts += fmt::format("{}machine {} ({}) brings {}", counts.empty() ? "" : ", ",
                          machine.machine_rank, machine.host, machine.local_world_size);
  }
  if (num_processes == 0 || num_processes == total) {
    return "";
  }
  return fmt::format("--num_processes {} is the total over all machines, but {}: {} in all",
                     num_processes, counts, total);
}

Joining::Joining(AsyncClient& client, std::string run_id, Machine me, Terms terms,
                 MeetingTimes times, AsyncClient::Progress progress)
    : client_(client),
      run_id_(std::move(run_id)),
      me_(std::move(me)),
      terms_(terms),
      times_(times),
      progress_(std::move(progress)) {}

asio::awaitable<void> Joining::agree() {
  const std::string mine = encode_terms(terms_, me_);
  const std::string found = co_await client_.compare_set(launcher_key(run_id_, "terms"), "", mine);
  const std::string reason = disagreement(terms_, me_, found);
  if (!reason.empty()) {
    co_await refuse(reason);
  }
}

std::string Joining::key_of(int machine_rank) const {
  return launcher_key(run_id_, fmt::format("machines/{}", machine_rank));
}

asio::awaitable<Machine> Joining::claim(int rank) {
  const std::string mine = encode(me_);
  std::string found = co_await client_.compare_set(key_of(rank), "", mine);
  const Machine other = decode_machine(found);
  if (found != mine && is_dead_neighbour(other, me_)) {
    const bool decided = co_await is_decided();
    if (!decided) {
      found = co_await client_.compare_set(key_of(rank), found, mine);
    }
  }
  co_return decode_machine(found);
}

asio::awaitable<void> Joining::leave() {
  const bool decided = co_await is_decided();
  if (decided) {
    co_return;
  }
  const auto found = co_await client_.multi_get(machine_keys());
  for (const std::string& text : found) {
    const Machine machine = text.empty() ? Machine{} : decode_machine(text);
    if (machine.pid_space == me_.pid_space && machine.pid == me_.pid) {
      co_await client_.delete_key(key_of(machine.machine_rank));
    }
  }
}

asio::awaitable<void> leave(AsyncClient& client, std::string run_id, Machine me, Terms terms) {
  Joining joining(client, std::move(run_id), std::move(me), terms, {}, {});
  co_await joining.leave();
}

asio::awaitable<void> Joining::refuse(std::string reason) {
  const auto listeners = co_await present();
  std::string outcome = fmt::format("{}\n{}", listeners.size() + 1, reason);
  const std::string found = co_await client_.compare_set(ready_key(), "", outcome);
  if (found == outcome) {
    co_await fail(std::move(outcome));
  }
  throw Error(Errc::config, reason);
}

asio::awaitable<void> Joining::fail(std::string outcome) {
  std::string_view text = outcome;
  const int listeners = take_int(text);
  co_await client_.barrier(launcher_key(run_id_, "refused"), listeners, kRefusalPause);
  throw Error(Errc::config, std::string(text));
}

asio::awaitable<void> Joining::declare_ready(std::vector<Machine> machines) {
  std::string outcome(kReady);
  for (const Machine& machine : machines) {
    outcome += encode(machine);
  }
  co_await client_.compare_set(ready_key(), "", std::move(outcome));
}

asio::awaitable<bool> Joining::is_decided() {
  return client_.check(ready_keys());
}

asio::awaitable<bool> Joining::await_decision(Milliseconds limit) {
  return client_.wait(ready_keys(), limit);
}

asio::awaitable<std::vector<Machine>> Joining::decided_machines() {
  const std::string outcome = co_await client_.get(ready_key());
  if (!outcome.starts_with(kReady)) {
    co_await fail(outcome);
  }
  std::string_view text = std::string_view(outcome).substr(kReady.size());
  std::vector<Machine> all;
  while (!text.empty()) {
    all.push_back(take_machine(text));
  }
  const std::string wrong = wrong_total(all, terms_.num_processes);
  if (!wrong.empty()) {  // everybody sees the same
    co_await fail(fmt::format("{}\n{}", all.size(), wrong));
  }
  co_return all;
}

asio::awaitable<std::vector<Machine>> Joining::present() {
  const auto found = co_await client_.multi_get(machine_keys());
  std::vector<Machine> machines;
  for (const std::string& text : found) {
    if (!text.empty()) {
      machines.push_back(decode_machine(text));
    }
  }
  co_return machines;
}

Milliseconds Joining::elapsed() const {
  return std::chrono::floor<Milliseconds>(std::chrono::steady_clock::now() - start_);
}

std::string Joining::clock() const {
  return fmt::format("{} s of {}", std::chrono::floor<std::chrono::seconds>(elapsed()).count(),
                     timeout_text());
}

std::string Joining::timeout_text() const {
  return fmt::format("{} s", std::chrono::ceil<std::chrono::seconds>(times_.timeout).count());
}

std::string Joining::ready_key() const {
  return launcher_key(run_id_, "ready");
}

std::vector<std::string> Joining::ready_keys() const {
  return {ready_key()};
}

std::vector<std::string> Joining::machine_keys() const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < terms_.num_machines; ++rank) {
    keys.push_back(key_of(rank));
  }
  return keys;
}

}  // namespace acc::rendezvous
