#include "acc/base/error.hpp"
#include "acc/rendezvous/server.hpp"
#include "meeting/joining.hpp"
#include "records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;

namespace {

class JoiningByArrival : public Joining {
 public:
  using Joining::Joining;

  asio::awaitable<void> claim_next_rank() {
    for (int rank = 0; rank < terms_.num_machines; ++rank) {
      me_.machine_rank = rank;
      const Machine owner = co_await claim(rank);
      if (owner == me_) {
        co_return;
      }
    }
    throw Error(Errc::config,
                fmt::format("{} machines have already met at {} for the run id '{}', as many as "
                            "it takes: give another job a run id of its own",
                            terms_.num_machines, client_.where(), run_id_));
  }

  asio::awaitable<Round> await_round() {
    bool decided = co_await is_decided();
    while (!decided) {
      auto machines = co_await present();
      const int count = static_cast<int>(machines.size());
      if (count == terms_.num_machines || last_call_is_over(count)) {
        co_await declare_ready(std::move(machines));
        break;
      }
      report(count);
      decided = co_await await_decision(pause(count));
    }
    auto machines = co_await decided_machines();
    co_return round_of(std::move(machines));
  }

 private:
  /// The ranks that those who left have freed are not left out.
  [[nodiscard]] Round round_of(std::vector<Machine> machines) const {
    const auto mine = std::ranges::find(machines, me_);
    if (mine == machines.end()) {
      throw Error(Errc::config,
                  fmt::format("the job has started without this machine: {} machines had come to "
                              "{} when the last call was over",
                              machines.size(), client_.where()));
    }
    const auto machine_rank = static_cast<int>(mine - machines.begin());
    int rank = 0;
    for (Machine& machine : machines) {
      machine.machine_rank = rank++;
    }
    return {std::move(machines), machine_rank};
  }

  /// The last call begins when this machine sees the minimum for the first time.
  bool last_call_is_over(int present) {
    if (present < terms_.min_machines) {
      return false;
    }
    last_call_began_ = std::min(last_call_began_, elapsed());
    return elapsed() >= last_call_began_ + times_.last_call;
  }

  void report(int present) {
    if (present < terms_.min_machines && left() <= Milliseconds::zero()) {
      throw Error(Errc::timeout,
                  fmt::format("{} of {} machines came to {} within {}: start acclaunch on the "
                              "others with the same flags",
                              present, wanted(), client_.where(), timeout_text()));
    }
    if (progress_) {
      progress_(fmt::format("waiting for machines: {} of {} are at {}, {}", present, wanted(),
                            client_.where(), clock()));
    }
  }

  [[nodiscard]] std::string wanted() const {
    return terms_.min_machines == terms_.num_machines
               ? std::to_string(terms_.num_machines)
               : fmt::format("{} to {}", terms_.min_machines, terms_.num_machines);
  }

  [[nodiscard]] Milliseconds pause(int present) const {
    const Milliseconds limit =
        present < terms_.min_machines ? left() : last_call_began_ + times_.last_call - elapsed();
    return std::clamp(limit, Milliseconds(1), times_.interval);
  }

  Milliseconds last_call_began_ = Milliseconds::max();
};

}  // namespace

asio::awaitable<Round> meet_by_arrival(AsyncClient& client, std::string run_id, Machine me,
                                       Terms terms, MeetingTimes times,
                                       AsyncClient::Progress progress) {
  JoiningByArrival joining(client, std::move(run_id), std::move(me), terms, times,
                           std::move(progress));
  co_await joining.agree();
  co_await joining.claim_next_rank();
  co_return co_await joining.await_round();
}

void arrive_first(Server& server, const std::string& run_id, Machine me) {
  me.machine_rank = 0;
  server.set(launcher_key(run_id, "machines/0"), encode(me));
}

asio::awaitable<void> publish_store(AsyncClient& client, std::string run_id, StoreAddress store) {
  return client.set(launcher_key(run_id, "store"), fmt::format("{}\n{}", store.port, store.host));
}

asio::awaitable<StoreAddress> await_store(AsyncClient& client, std::string run_id,
                                          AsyncClient::Milliseconds timeout) {
  const std::string found = co_await client.get(launcher_key(run_id, "store"), timeout);
  std::string_view text = found;
  StoreAddress store;
  store.port = static_cast<std::uint16_t>(take_int(text));
  store.host = take_line(text);
  co_return store;
}

}  // namespace acc::rendezvous
