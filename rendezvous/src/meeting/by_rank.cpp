#include "acc/base/error.hpp"
#include "meeting/joining.hpp"
#include "records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;

namespace {

// Here and in the other coroutines no co_await stands inside a condition, nor a braced list of
// strings: g++ 12 compiles neither.
class JoiningByRank : public Joining {
 public:
  using Joining::Joining;

  asio::awaitable<void> claim_rank() {
    const Machine owner = co_await claim(me_.machine_rank);
    if (owner != me_) {
      co_await refuse(
          fmt::format("--machine_rank {} is claimed twice: on {} (pid {}) and on {} "
                      "(pid {}): give every machine its own",
                      me_.machine_rank, owner.host, owner.pid, me_.host, me_.pid));
    }
  }

  asio::awaitable<std::vector<Machine>> await_all() {
    auto all = co_await present();
    if (static_cast<int>(all.size()) == terms_.num_machines) {
      co_await declare_ready(std::move(all));
    }
    bool decided = co_await is_decided();
    while (!decided) {
      co_await say_who_is_missing();
      decided = co_await await_decision(std::clamp(left(), Milliseconds(1), times_.interval));
    }
    auto machines = co_await decided_machines();
    const Machine& mine = machines[static_cast<std::size_t>(me_.machine_rank)];
    if (mine != me_) {
      throw Error(Errc::config, fmt::format("the job has started with {}, which was here before",
                                            describe(mine)));
    }
    co_return machines;
  }

 private:
  [[nodiscard]] std::vector<int> missing(const std::vector<Machine>& present) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < terms_.num_machines; ++rank) {
      if (std::ranges::find(present, rank, &Machine::machine_rank) == present.end()) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  asio::awaitable<void> say_who_is_missing() {
    const auto machines = co_await present();
    const auto ranks = missing(machines);
    if (left() <= Milliseconds::zero()) {
      throw Error(Errc::timeout,
                  fmt::format("machines {} of {} did not come to {} within {}: start acclaunch "
                              "there with the same flags and --machine_rank {}",
                              fmt::join(ranks, ","), terms_.num_machines, client_.where(),
                              timeout_text(), fmt::join(ranks, " or ")));
    }
    if (progress_ && !ranks.empty()) {
      progress_(fmt::format("waiting for machines {} of {} at {}, {}", fmt::join(ranks, ","),
                            terms_.num_machines, client_.where(), clock()));
    }
  }
};

}  // namespace

asio::awaitable<std::vector<Machine>> meet_by_rank(AsyncClient& client, std::string run_id,
                                                   Machine me, Terms terms, MeetingTimes times,
                                                   AsyncClient::Progress progress) {
  if (me.machine_rank < 0 || me.machine_rank >= terms.num_machines) {
    throw Error(Errc::config,
                fmt::format("--machine_rank {}, expected 0 to {} with --num_machines "
                            "{}",
                            me.machine_rank, terms.num_machines - 1, terms.num_machines));
  }
  JoiningByRank joining(client, std::move(run_id), std::move(me), terms, times,
                        std::move(progress));
  co_await joining.agree();
  co_await joining.claim_rank();
  co_return co_await joining.await_all();
}

}  // namespace acc::rendezvous
