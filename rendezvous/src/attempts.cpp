#include "acc/rendezvous/attempts.hpp"

#include "acc/rendezvous/server.hpp"
#include "records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace acc::rendezvous {

namespace asio = boost::asio;

namespace {

std::string attempt_key(const std::string& run_id, int attempt, std::string_view name) {
  return launcher_key(run_id, fmt::format("attempts/{}/{}", attempt, name));
}

std::string encode(const AttemptEnd& end) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", end.machine_rank, end.exit_status, end.restarts ? 1 : 0,
                     static_cast<int>(end.cause), one_line(end.reason));
}

AttemptEnd decode_end(std::string_view text) {
  AttemptEnd end;
  end.machine_rank = take_int(text);
  end.exit_status = take_int(text);
  end.restarts = take_int(text) != 0;
  end.cause = static_cast<AttemptEnd::Cause>(take_int(text));
  end.reason = take_line(text);
  return end;
}

/// A machine that is gone says this instead of a report.
constexpr const char* kNothing = "gone";

std::string report_key(const std::string& run_id, int attempt, int machine_rank) {
  return attempt_key(run_id, attempt, fmt::format("reports/{}", machine_rank));
}

std::vector<std::string> report_keys(const std::string& run_id, int attempt, int num_machines) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < num_machines; ++rank) {
    keys.push_back(report_key(run_id, attempt, rank));
  }
  return keys;
}

std::vector<std::string> tie_keys(const std::string& run_id, int num_machines) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < num_machines; ++rank) {
    keys.push_back(tie_key(run_id, rank));
  }
  return keys;
}

}  // namespace

asio::awaitable<AttemptEnd> announce_end(AsyncClient& client, std::string run_id, int attempt,
                                         AttemptEnd end) {
  for (;; ++attempt) {
    const std::string found =
        co_await client.compare_set(attempt_key(run_id, attempt, "end"), "", encode(end));
    AttemptEnd counts = decode_end(found);
    if (end.restarts || !counts.restarts) {
      co_return counts;
    }
  }
}

asio::awaitable<AttemptEnd> await_end(AsyncClient& client, std::string run_id, int attempt) {
  const std::string found = co_await client.get(attempt_key(run_id, attempt, "end"));
  co_return decode_end(found);
}

asio::awaitable<void> insist(AsyncClient& client, std::string run_id) {
  return client.set(launcher_key(run_id, "insist"), "1");
}

asio::awaitable<void> await_insistence(AsyncClient& client, std::string run_id) {
  co_await client.get(launcher_key(run_id, "insist"));
}

asio::awaitable<Settlement> settle(AsyncClient& client, std::string run_id, int attempt,
                                   int machine_rank, int num_machines, std::string report) {
  co_await client.set(report_key(run_id, attempt, machine_rank), std::move(report));
  co_await client.wait(report_keys(run_id, attempt, num_machines));
  co_return co_await settled_so_far(client, run_id, attempt, num_machines);
}

asio::awaitable<Settlement> settled_so_far(AsyncClient& client, std::string run_id, int attempt,
                                           int num_machines) {
  std::vector<std::string> keys = report_keys(run_id, attempt, num_machines);
  keys.push_back(attempt_key(run_id, attempt, "end"));
  Settlement settlement;
  settlement.reports = co_await client.multi_get(std::move(keys));
  if (!settlement.reports.back().empty()) {
    settlement.end = decode_end(settlement.reports.back());
  }
  settlement.reports.pop_back();
  std::ranges::replace(settlement.reports, std::string(kNothing), std::string());
  co_return settlement;
}

void report_nothing(Server& server, const std::string& run_id, int attempt, int machine_rank) {
  server.set_if_absent(report_key(run_id, attempt, machine_rank), kNothing);
}

asio::awaitable<void> tie(AsyncClient& client, std::string run_id, int machine_rank) {
  return client.set(tie_key(run_id, machine_rank), "1");
}

asio::awaitable<std::vector<int>> await_ties(AsyncClient& client, std::string run_id,
                                             int num_machines, AsyncClient::Milliseconds timeout) {
  const std::vector<std::string> keys = tie_keys(run_id, num_machines);
  std::vector<int> missing;
  const bool all_came = co_await client.wait(keys, timeout);
  if (!all_came) {
    const auto found = co_await client.multi_get(keys);
    for (int rank = 1; rank < num_machines; ++rank) {
      if (found[static_cast<std::size_t>(rank - 1)].empty()) {
        missing.push_back(rank);
      }
    }
  }
  co_return missing;
}

asio::awaitable<void> open_attempt(AsyncClient& client, std::string run_id, int attempt) {
  return client.set(attempt_key(run_id, attempt, "open"), "1");
}

asio::awaitable<void> await_attempt(AsyncClient& client, std::string run_id, int attempt) {
  co_await client.get(attempt_key(run_id, attempt, "open"));
}

asio::awaitable<bool> finish(AsyncClient& client, std::string run_id, int num_machines,
                             std::optional<AsyncClient::Milliseconds> timeout) {
  return client.barrier(launcher_key(run_id, "finish"), num_machines, timeout);
}

}  // namespace acc::rendezvous
