// SPDX-License-Identifier: Apache-2.0
#include "doctor/examine.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "doctor/findings.hpp"
#include "doctor/measure.hpp"
#include "doctor/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace acc::doctor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using Pair = std::pair<int, int>;

constexpr seconds kFactsLimit{20};   ///< for the facts of all machines
constexpr seconds kResolveLimit{5};  ///< per name; the default of resolv.conf's `timeout`
constexpr seconds kConnectLimit{3};  ///< TCP sends a lost SYN again after 1 s, then after 2 s more
constexpr seconds kClockLimit{3};    ///< for the answers of a machine that may be busy
constexpr seconds kPairLimit = kMeasureLimit + seconds(7);  ///< per round of measurements
constexpr int kTimesAgain = 2;          ///< repetitions of measurements that look slow
constexpr std::size_t kMostAgain = 16;  ///< limit of pairs per repetition

/// The examination by one machine. Machines exchange everything through the store: "facts/M",
/// "reached/M", "round/R/M" and "pairs/M" are written by machine M, "again/..." directs the
/// repeated measurements. A machine that misses one limit is `lost_` and is not waited for again.
class Examiner {
 public:
  Examiner(const settings::RuntimeSettings& settings, std::shared_ptr<rendezvous::Store> store,
           const MachineFacts& own)
      : settings_(settings),
        store_(std::move(store)),
        me_(settings.identity.node_rank),
        count_(settings.identity.num_nodes) {
    examination_.machines.resize(static_cast<std::size_t>(count_));
    examination_.main_process =
        fmt::format("{}:{}", settings.identity.master_addr, settings.identity.master_port);
    examination_.machines[static_cast<std::size_t>(me_)] = own;
  }

  Examination run() {
    exchange_facts();
    look_at_others();
    measure_rounds();
    collect();
    measure_again();
    return std::move(examination_);
  }

 private:
  const std::optional<MachineFacts>& machine(int number) const {
    return examination_.machines[static_cast<std::size_t>(number)];
  }

  /// Value of a key, or nothing if it is not written within the limit.
  std::optional<std::string> get(const std::string& key, milliseconds limit) const {
    try {
      return store_->get(key, std::max(limit, milliseconds(1)));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) {
        throw;
      }
      return std::nullopt;
    }
  }

  /// Calls `use` with the value that each other machine writes under `key`/MACHINE. The limit is
  /// for all of them together. A machine whose value is missing becomes lost.
  template <typename Use>
  void get_from_others(const std::string& key, milliseconds limit, const Use& use) {
    const auto deadline = Clock::now() + limit;
    for (int other = 0; other < count_; ++other) {
      if (other == me_ || lost_.contains(other)) {
        continue;
      }
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      if (const auto text = get(fmt::format("{}/{}", key, other), left)) {
        use(other, *text);
      } else {
        lost_.insert(other);
      }
    }
  }

  void exchange_facts() {
    store_->set(fmt::format("facts/{}", me_), encode(*machine(me_)));
    get_from_others("facts", kFactsLimit, [&](int other, const std::string& text) {
      examination_.machines[static_cast<std::size_t>(other)] = decode_machine(text);
    });
  }

  /// Resolves the other machines' names, connects to them and compares clocks. Needs nothing from
  /// the store, so a machine that is slow here delays no other.
  void look_at_others() {
    std::vector<std::string> names;
    for (int other = 0; other < count_; ++other) {
      if (other != me_ && machine(other)) {
        names.push_back(machine(other)->host);
      }
    }
    const auto resolved = resolve(names, kResolveLimit);
    std::vector<Target> targets;
    for (int other = 0; other < count_; ++other) {
      if (other == me_ || !machine(other)) {
        continue;
      }
      PairFacts& pair = mine_.emplace_back();
      pair.from = me_;
      pair.to = other;
      const Resolved& name = resolved.at(machine(other)->host);
      pair.name_resolves_to = name.addresses;
      pair.name_failure = name.failure;
      add_targets(targets, *machine(other), name);
    }
    connect_to_all(targets);
    for (PairFacts& pair : mine_) {
      read_clock(pair, *machine(pair.to));
    }
  }

  /// Adds all ports of the address that collectives publish, and one port of each other address of
  /// the name.
  static void add_targets(std::vector<Target>& targets, const MachineFacts& other,
                          const Resolved& name) {
    for (const std::uint16_t port : other.ports) {
      targets.push_back({other.address, port, other.token});
    }
    for (const std::string& address : name.addresses) {
      if (address != other.address && !is_loopback(address)) {
        targets.push_back({address, other.ports.front(), other.token});
      }
    }
  }

  void connect_to_all(const std::vector<Target>& targets) {
    const std::vector<Attempt> attempts = connect_to(targets, kConnectLimit);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      for (PairFacts& pair : mine_) {
        if (machine(pair.to)->token == targets[i].token) {
          pair.attempts.push_back(attempts[i]);
        }
      }
    }
  }

  static void read_clock(PairFacts& pair, const MachineFacts& other) {
    const auto open = std::ranges::find(pair.attempts, Reached::yes, &Attempt::reached);
    if (open == pair.attempts.end()) {
      return;
    }
    if (const auto reading =
            compare_clocks({open->address, open->port, other.token}, kClockLimit)) {
      pair.clock_offset_ms = reading->offset_ms;
      pair.round_trip_us = reading->round_trip_us;
    }
  }

  PairFacts* facts_of(int other) {
    const auto found = std::ranges::find(mine_, other, &PairFacts::to);
    return found == mine_.end() ? nullptr : &*found;
  }

  /// Decides which pairs measure, in the same way on both machines of a pair: those in which at
  /// least one machine can connect to the other.
  void agree_on_pairs() {
    std::string reached(static_cast<std::size_t>(count_), '0');
    for (const PairFacts& pair : mine_) {
      reached[static_cast<std::size_t>(pair.to)] =
          pair.reaches(machine(pair.to)->address) ? '1' : '0';
    }
    store_->set(fmt::format("reached/{}", me_), reached);
    const milliseconds limit = kResolveLimit + 2 * kConnectLimit + count_ * kClockLimit;
    get_from_others("reached", limit, [&](int other, const std::string& theirs) {
      if (reached[static_cast<std::size_t>(other)] == '1' ||
          theirs.at(static_cast<std::size_t>(me_)) == '1') {
        measurable_.insert(other);
      }
    });
  }

  void measure(const Pair& pair, const std::string& name) {
    const int other = pair.first == me_ ? pair.second : pair.first;
    PairFacts& facts = *facts_of(other);
    try {
      const Measurements figures = measure_pair(settings_, store_, name, pair.first, pair.second);
      facts.latency_us = figures.latency_us;
      facts.bandwidth_gbps = figures.bandwidth_gbps;
      facts.failure.clear();
    } catch (const Error& error) {
      facts.failure = error.what();
    }
  }

  bool is_mine(const Pair& pair) const { return pair.first == me_ || pair.second == me_; }

  /// Measures all pairs in rounds. The pairs of a round are disjoint and measure at the same time.
  /// The next round begins when all machines have finished this one.
  void measure_rounds() {
    agree_on_pairs();
    const auto rounds = rounds_of_pairs(count_);
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      for (const Pair& pair : rounds[round]) {
        const int other = pair.first == me_ ? pair.second : pair.first;
        if (is_mine(pair) && measurable_.contains(other) && !lost_.contains(other)) {
          measure(pair, fmt::format("pair/{}-{}", pair.first, pair.second));
        }
      }
      const std::string key = fmt::format("round/{}", round);
      store_->set(fmt::format("{}/{}", key, me_), "");
      get_from_others(key, kPairLimit, [](int, const std::string&) {});
    }
  }

  void collect() {
    examination_.pairs = mine_;
    if (me_ != 0) {
      store_->set(fmt::format("pairs/{}", me_), encode(mine_));
      return;
    }
    // Asks machines that were late in an earlier step once more, for what they measured.
    std::erase_if(lost_, [&](int other) { return machine(other).has_value(); });
    get_from_others("pairs", kPairLimit, [&](int, const std::string& text) {
      for (PairFacts& each : decode_pairs(text)) {
        examination_.pairs.push_back(std::move(each));
      }
    });
  }

  /// Pairs that look slow and are measured again, because another program or another pair may have
  /// disturbed the measurement.
  std::vector<Pair> doubtful_pairs() const {
    const SlowLinks slow = slow_links(examination_);
    std::vector<Pair> pairs = slow.pairs;
    for (int a = 0; a < count_; ++a) {
      for (int b = a + 1; b < count_; ++b) {
        const bool slow_machine =
            std::ranges::count(slow.machines, a) + std::ranges::count(slow.machines, b) > 0;
        if (slow_machine && examination_.bandwidth_gbps(a, b)) {
          pairs.emplace_back(a, b);
        }
      }
    }
    std::erase_if(pairs, [&](const Pair& pair) {
      return lost_.contains(pair.first) || lost_.contains(pair.second);
    });
    pairs.resize(std::min(pairs.size(), kMostAgain));
    return pairs;
  }

  static std::string encode_list(const std::vector<Pair>& pairs) {
    std::vector<PairFacts> list;
    for (const auto& [a, b] : pairs) {
      PairFacts& each = list.emplace_back();
      each.from = a;
      each.to = b;
    }
    return encode(list);
  }

  /// Measures the pairs that look slow again, one after the other with no other traffic. Machine 0
  /// writes the list of pairs and tells each pair when to start.
  void measure_again() {
    for (int time = 0; time < kTimesAgain; ++time) {
      const std::string key = fmt::format("again/{}", time);
      me_ == 0 ? conduct_again(key) : take_part_again(key);
    }
  }

  static std::string pair_key(const std::string& key, const Pair& pair) {
    return fmt::format("{}/{}-{}", key, pair.first, pair.second);
  }

  void take_part_again(const std::string& key) {
    const milliseconds limit = kPairLimit * (kMostAgain + 1);
    const auto list = get(key, limit);
    for (const PairFacts& each : decode_pairs(list.value_or("[]"))) {
      const Pair pair = {each.from, each.to};
      const std::string name = pair_key(key, pair);
      if (is_mine(pair) && get(name + "/go", limit)) {
        measure(pair, name);
        const int other = pair.first == me_ ? pair.second : pair.first;
        store_->set(fmt::format("{}/{}", name, me_), encode({*facts_of(other)}));
      }
    }
  }

  void conduct_again(const std::string& key) {
    const std::vector<Pair> pairs = doubtful_pairs();
    store_->set(key, encode_list(pairs));
    for (const Pair& pair : pairs) {
      conduct_again(pair, pair_key(key, pair));
    }
  }

  void conduct_again(const Pair& pair, const std::string& name) {
    store_->set(name + "/go", "");
    if (is_mine(pair)) {
      measure(pair, name);
      take_better(*facts_of(pair.second));
    }
    for (const int member : {pair.first, pair.second}) {
      const auto text =
          member == me_ ? std::nullopt : get(fmt::format("{}/{}", name, member), kPairLimit);
      for (const PairFacts& each : decode_pairs(text.value_or("[]"))) {
        take_better(each);
      }
    }
  }

  /// Keeps the better of the old and the new figures of a pair.
  void take_better(const PairFacts& now) {
    for (PairFacts& each : examination_.pairs) {
      if (each.from == now.from && each.to == now.to && now.failure.empty() && now.latency_us &&
          now.bandwidth_gbps) {
        each.latency_us = std::min(each.latency_us.value_or(*now.latency_us), *now.latency_us);
        each.bandwidth_gbps = std::max(each.bandwidth_gbps.value_or(0.0), *now.bandwidth_gbps);
        each.measured_again = true;
      }
    }
  }

  const settings::RuntimeSettings& settings_;
  std::shared_ptr<rendezvous::Store> store_;
  int me_, count_;
  Examination examination_;
  std::vector<PairFacts> mine_;
  std::set<int> lost_;        ///< machines that missed a limit
  std::set<int> measurable_;  ///< machines that reach this one or are reached from it
};

}  // namespace

// Circle method: machines sit on seats around a table, and the two seats opposite each other form a
// pair. From round to round all machines except the one on seat 0 move by one seat. After (seats -
// 1) rounds every machine has met every other one. For an odd number of machines one seat is empty,
// and the machine opposite to it rests.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int count) {
  const int seats = count + count % 2;  // if count is odd, the last seat is empty
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    const auto at = [&](int seat) {  // seat 0 stays, the others rotate
      return seat == 0 ? 0 : 1 + (seat - 1 + round) % (seats - 1);
    };
    std::vector<std::pair<int, int>>& pairs = rounds.emplace_back();
    for (int seat = 0; seat < seats / 2; ++seat) {
      const auto [low, high] = std::minmax({at(seat), at(seats - 1 - seat)});
      if (high < count) {
        pairs.emplace_back(low, high);
      }
    }
  }
  return rounds;
}

Examination examine(const settings::RuntimeSettings& settings,
                    const std::shared_ptr<rendezvous::Store>& store, const MachineFacts& own) {
  return Examiner(settings, store, own).run();
}

}  // namespace acc::doctor
