// SPDX-License-Identifier: Apache-2.0
#include "acc/base/membership_page.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/runtime.hpp"
#include "acc/runtime/checkpoint_series.hpp"
#include "support/module_net.hpp"
#include "support/run_ranks.hpp"
#include "support/saved_step.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <latch>
#include <stdexcept>
#include <string>
#include <vector>

// Snapshots in memory that outlives a rank, and what a series resumes from.
namespace {

using acc::settings::Strategy;
using acc::test::Job;
using acc::test::ModuleNet;
using acc::test::TemporaryFolder;
using acc::test::Weights;

/// The memory that a launcher holds for the ranks of a job.
class Memories {
 public:
  std::string page;  ///< path of that of the job; empty: it has none, and one machine has all ranks

  explicit Memories(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      files_.emplace_back(::memfd_create("snapshots", MFD_CLOEXEC));
    }
  }
  /// The paths that a launcher gives the ranks of its machine: all of them, with one machine, also
  /// those of ranks that are there no more.
  [[nodiscard]] std::vector<std::string> paths(
      const acc::settings::WorkerIdentity& identity) const {
    std::vector<std::string> all;
    const int first = identity.node_rank * identity.local_world_size;
    const int end = identity.num_nodes == 1 && page.empty() ? static_cast<int>(files_.size())
                                                            : first + identity.local_world_size;
    for (int rank = first; rank < end; ++rank) {
      all.push_back(
          fmt::format("/proc/self/fd/{}", files_.at(static_cast<std::size_t>(rank)).get()));
    }
    return all;
  }
  /// Forgets what a rank had, as a machine that replaces a lost one.
  void clear(int rank) const {
    REQUIRE(::ftruncate(files_.at(static_cast<std::size_t>(rank)).get(), 0) == 0);
  }
  /// Changes a byte of one of the rank's two snapshots; the first is in half 0.
  void damage(int rank, int half) const {
    const int file = files_.at(static_cast<std::size_t>(rank)).get();
    const off_t at = (static_cast<off_t>(half) << 42) + 4096 + 700;
    char byte = 0;
    REQUIRE(::pread(file, &byte, 1, at) == 1);
    byte = static_cast<char>(byte ^ 1);
    REQUIRE(::pwrite(file, &byte, 1, at) == 1);
  }

 private:
  std::vector<acc::UniqueFd> files_;
};

Job job_with_memory(int ranks, Strategy strategy, int shard_size = 0, int machines = 1) {
  Job job = acc::test::job_of(strategy, ranks, machines);
  job.sharding.shard_size = shard_size;
  job.sharding.memory_checkpoint_every = 2;
  return job;
}

const acc::NamedRule kRule{"adamw", {{"lr", 0.05}, {"weight_decay", 0.1}}};
/// A rule whose states are each on one rank only, also with replicas.
const acc::NamedRule kOwnedRule{"adafactor", {{"lr", 0.05}, {"weight_decay", 0.1}}};
/// Rules of matrices, with states of AdamW for the elements of the other parameters alone: with
/// states of matrices on their owners, and in shards.
const acc::NamedRule kBesideOwned{"soap", {{"lr", 0.05}, {"weight_decay", 0.1}}};
const acc::NamedRule kBesideShards{"muon", {{"lr", 0.05}, {"weight_decay", 0.1}}};

/// One attempt of a run: resumes, trains until step `until`, and returns the weights. The step on
/// disk is 3.
struct Attempt {
  std::string from;        ///< of rank 0
  std::int64_t began = 0;  ///< step after which it began
  std::string value;       ///< of each rank, as restored
  Weights weights;
};
Attempt attempt(const Job& job, const std::string& folder, const Memories& memories, int until,
                bool saves_step_4 = false, const acc::NamedRule& rule = kRule) {
  Attempt result;
  acc::test::run_ranks(job, [&](auto settings, auto store) {
    const int rank = settings.identity.rank;
    settings.snapshot_memory = memories.paths(settings.identity);
    settings.membership = memories.page;
    settings.identity.restart_count = 1;
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(1);
    ModuleNet net(
        model, {{"", "Net", -1, {{"embedding", 39}}},
                {"block", "Block", 0, {{"weight", 140, {}, acc::normal(0.5F), 14}, {"bias", 17}}}});
    auto optimizer = model.optimizer(rule);
    const acc::CheckpointSeries series(runtime, folder, {});
    const auto resumed = series.resume(model, optimizer);
    if (resumed) {
      CHECK(acc::test::step_of(resumed->state) == optimizer.steps());
      if (const auto own = resumed->state.of_rank.find("rank");
          own != resumed->state.of_rank.end()) {
        CHECK(own->second == acc::ProgramValue(std::int64_t{rank}));
      }
    }
    if (rank == 0) {
      result.from = resumed ? resumed->from : "";
      result.began = optimizer.steps();
    }
    while (optimizer.steps() < until) {
      net.micro_step(acc::test::usual_gradient(rank, 0));
      optimizer.step();
      acc::SavedState state = acc::test::at_step(optimizer.steps());
      state.of_rank["rank"] = std::int64_t{rank};
      CHECK(series.keep_in_memory(model, optimizer, state) == (optimizer.steps() % 2 == 0));
      if (optimizer.steps() == 3 || (saves_step_4 && optimizer.steps() == 4)) {
        series.save(model, optimizer, state);
      }
    }
    const Weights weights = net.read();
    if (rank == 0) {
      result.weights = weights;
    }
    runtime.barrier();
  });
  return result;
}

}  // namespace

TEST_CASE("a series resumes from the newest step that all ranks hold in memory") {
  for (const Job& job :
       {job_with_memory(1, Strategy::no_shard), job_with_memory(2, Strategy::full_shard),
        job_with_memory(2, Strategy::no_shard), job_with_memory(4, Strategy::hybrid_shard, 2)}) {
    CAPTURE(job.world_size);
    const int last = job.world_size - 1;
    struct Case {
      const char* what;
      std::function<void(const Memories& memories)> happens;
      std::int64_t resumes_at;
      bool from_memory;
    };
    for (const Case& each : {
             Case{"restarted", [](const auto&) {}, 4, true},
             Case{"a byte of the newest is damaged on one rank",
                  [&](const auto& memories) { memories.damage(last, 1); }, 3, false},
             Case{"a byte of the older is damaged",
                  [&](const auto& memories) { memories.damage(last, 0); }, 4, true},
             Case{"one rank is new", [&](const auto& memories) { memories.clear(last); }, 3, false},
         }) {
      CAPTURE(each.what);
      const TemporaryFolder folder;
      const std::string path = folder.path().string();
      const Memories memories(job.world_size);
      const Attempt first = attempt(job, path, memories, 5);
      CHECK(first.from.empty());
      each.happens(memories);
      const Attempt second = attempt(job, path, memories, 7);
      CHECK(second.began == each.resumes_at);
      CHECK(second.from == (each.from_memory ? "memory" : path + "/checkpoint_0"));
      const TemporaryFolder other;
      const Memories unused(job.world_size);
      CHECK(second.weights == attempt(job, other.path().string(), unused, 7).weights);  // bitwise
    }
  }
}

TEST_CASE("states in 8 bits resume from memory bit for bit") {
  acc::NamedRule rule = kRule;
  rule.coefficients["states_8bit"] = 1.0;
  rule.coefficients["min_8bit_size"] = 38.0;
  const Job job = job_with_memory(2, Strategy::full_shard);
  const TemporaryFolder folder;
  const TemporaryFolder other;
  const Memories memories(2);
  const Memories unused(2);
  attempt(job, folder.path().string(), memories, 5, false, rule);
  const Attempt second = attempt(job, folder.path().string(), memories, 7, false, rule);
  CHECK(second.from == "memory");
  CHECK(second.weights == attempt(job, other.path().string(), unused, 7, false, rule).weights);
}

TEST_CASE("a snapshot in memory of another series is not used") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const Memories memories(4);
  const Job job = job_with_memory(4, Strategy::full_shard);
  attempt(job, path, memories, 5);
  CHECK(attempt(job, path + "/other", memories, 1).from.empty());
  CHECK(attempt(job, path, memories, 5).began == 4);
}

TEST_CASE("another number of ranks, or another strategy, resumes from memory") {
  const Job four = job_with_memory(4, Strategy::full_shard);
  const Job hybrid = job_with_memory(4, Strategy::hybrid_shard, 2);
  const Job two = job_with_memory(2, Strategy::full_shard);
  struct Case {
    Job before;
    Job after;
  };
  for (const Case& each : {Case{four, two}, Case{two, four}, Case{four, hybrid}, Case{hybrid, two},
                           Case{four, job_with_memory(3, Strategy::full_shard)},
                           Case{four, job_with_memory(1, Strategy::no_shard)},
                           Case{job_with_memory(2, Strategy::no_shard), four},
                           Case{job_with_memory(2, Strategy::shard_optimizer), two}}) {
    for (const acc::NamedRule& rule : {kRule, kOwnedRule, kBesideOwned, kBesideShards}) {
      CAPTURE(rule.name);
      CAPTURE(each.before.world_size);
      CAPTURE(each.after.world_size);
      const TemporaryFolder folder;
      const std::string path = folder.path().string();
      const Memories memories(4);
      attempt(each.before, path, memories, 4, false, rule);
      const Attempt resumed = attempt(each.after, path, memories, 7, false, rule);
      CHECK(resumed.from == "memory");
      CHECK(resumed.began == 4);
      // The same from a checkpoint on disk: of step 3, from which the first job makes step 4.
      const TemporaryFolder other;
      const Memories unused(4);
      const std::string disk = other.path().string();
      CHECK(attempt(each.before, disk, unused, 4, true, rule).began == 0);
      const Memories none(4);
      const Attempt loaded = attempt(each.after, disk, none, 7, false, rule);
      CHECK(loaded.began == 4);
      CHECK(resumed.weights == loaded.weights);  // bitwise
    }
  }
}

TEST_CASE("a machine that replaces a lost one gets its state from the memory of another machine") {
  struct Case {
    const char* what;
    Job before;
    std::vector<int> lost;  ///< ranks whose machine is lost
    Job after;
    bool from_memory = true;
  };
  const auto machines = [](int count, int ranks, Strategy strategy, int shard_size = 0) {
    return job_with_memory(ranks, strategy, shard_size, count);
  };
  const Job two = machines(2, 4, Strategy::full_shard);
  const Job three = machines(3, 3, Strategy::full_shard);
  const Job hybrid = machines(2, 4, Strategy::hybrid_shard, 2);
  for (const Case& each : {
           Case{"one of two", two, {2, 3}, two},
           Case{"the first of two", two, {0, 1}, two},
           Case{"one of three", three, {1}, three},
           Case{"the last of three", three, {2}, three},
           Case{"one of three and the one that has its copies", three, {0, 1}, three, false},
           Case{"one of two, whose shards the other has", hybrid, {0, 1}, hybrid},
           Case{"one of two without shards",
                machines(2, 4, Strategy::no_shard),
                {2, 3},
                machines(2, 4, Strategy::no_shard)},
           Case{"one of two, and none replaces it",
                two,
                {2, 3},
                machines(1, 2, Strategy::full_shard)},
           Case{"one of three, and none replaces it",
                three,
                {2},
                machines(2, 2, Strategy::full_shard)},
           Case{"none, but there is one more", machines(1, 2, Strategy::full_shard), {}, two},
       }) {
    for (const acc::NamedRule& rule : {kRule, kOwnedRule, kBesideOwned, kBesideShards}) {
      CAPTURE(rule.name);
      CAPTURE(each.what);
      const TemporaryFolder folder;
      const std::string path = folder.path().string();
      const Memories memories(4);
      attempt(each.before, path, memories, 5, false, rule);
      for (const int rank : each.lost) {
        memories.clear(rank);
      }
      const Attempt resumed = attempt(each.after, path, memories, 7, false, rule);
      CHECK(resumed.from == (each.from_memory ? "memory" : path + "/checkpoint_0"));
      CHECK(resumed.began == (each.from_memory ? 4 : 3));
      if (each.before.world_size == each.after.world_size) {
        const TemporaryFolder other;
        const Memories unused(4);
        CHECK(
            resumed.weights ==
            attempt(each.after, other.path().string(), unused, 7, false, rule).weights);  // bitwise
      }
    }
  }
}

TEST_CASE("snapshots that are damaged on a neighbour's machine are not used") {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  const Memories memories(2);
  const Job job = job_with_memory(2, Strategy::full_shard, 0, 2);
  attempt(job, path, memories, 5);
  memories.clear(1);
  memories.damage(0, 3);  // the copy of rank 1's snapshot of step 4
  CHECK(attempt(job, path, memories, 5).from == path + "/checkpoint_0");
}

TEST_CASE("a rank ends although the machine that sends it a snapshot is lost without a word") {
  const TemporaryFolder folder;
  const Memories memories(2);
  std::latch has_ended(1);
  Job job = job_with_memory(2, Strategy::full_shard, 0, 2);
  job.timeout = std::chrono::hours(1);
  acc::test::run_ranks(job, [&](auto settings, auto store) {
    const bool is_lost = settings.identity.rank == 1;
    settings.snapshot_memory = memories.paths(settings.identity);
    {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model(1);
      ModuleNet net(model, {{"", "Net", -1, {{"embedding", 39}}}});
      int steps = 0;
      auto optimizer = model.optimizer(acc::ProgramRule{[&](const auto&) {
        if (is_lost && steps == 2) {
          throw std::runtime_error("lost");  // aborts the groups of the training
        }
      }});
      const acc::CheckpointSeries series(runtime, folder.path().string(), {});
      const auto step = [&] {
        net.micro_step(acc::test::usual_gradient(0, 0));
        optimizer.step();
        ++steps;
      };
      step();
      step();
      if (!is_lost) {
        CHECK(series.keep_in_memory(model, optimizer, {}));  // waits for what rank 1 does not send
      }
      try {
        step();
        runtime.barrier();
        FAIL_CHECK("the step was made");
      } catch (const std::exception&) {
      }
      if (is_lost) {
        has_ended.wait();  // its connections stay open
      }
    }
    if (!is_lost) {
      has_ended.count_down();
    }
  });
}

TEST_CASE("a rank sends its snapshot at most at the rate of the setting") {
  using Clock = std::chrono::steady_clock;
  Job job = job_with_memory(2, Strategy::full_shard, 0, 2);
  job.sharding.memory_checkpoint_rate = 6'000;
  const TemporaryFolder folder;
  const Memories memories(2);
  const auto begin = Clock::now();
  attempt(job, folder.path().string(), memories, 5);
  // Two snapshots with weights and two moments of half of 196 parameters.
  const double least = 2.0 * 12 * 98 / 6'000;
  CHECK(std::chrono::duration<double>(Clock::now() - begin).count() > least);
}

TEST_CASE("replicas go on from the last attempt that has made a step") {
  // A machine is away while the others make step 4 again, and has what they had made with it.
  struct Case {
    acc::MembershipPage::Changes changes;
    int machines;
  };
  for (const Case& each : {Case{acc::MembershipPage::Changes::machines, 3},
                           Case{acc::MembershipPage::Changes::nothing, 2}}) {
    CAPTURE(each.machines);
    for (int time = 0; time < 5; ++time) {  // the number of an attempt is random in part
      const TemporaryFolder folder;
      const std::string path = folder.path().string();
      std::uint32_t round = 0;
      Memories memories(each.machines);
      const auto made = [&](int machines) {
        auto page = acc::MembershipPage::create(each.changes);
        page.begin_epoch(++round, {});
        memories.page = fmt::format("/proc/self/fd/{}", page.fd());
        return attempt(job_with_memory(machines, Strategy::no_shard, 0, machines), path, memories,
                       4);
      };
      const Attempt with_all = made(each.machines);
      for (int rank = 0; rank + 1 < each.machines; ++rank) {
        memories.damage(rank, 1);
      }
      const Attempt without = made(each.machines - 1);
      CHECK(without.began == 3);
      CHECK_FALSE(without.weights == with_all.weights);
      const Attempt again = made(each.machines);
      CHECK(again.began == 4);
      CHECK(again.weights == without.weights);
    }
  }
}

TEST_CASE("memory that cannot be opened costs only the snapshots") {
  const TemporaryFolder folder;
  acc::test::run_ranks(job_with_memory(2, Strategy::full_shard), [&](auto settings, auto store) {
    settings.snapshot_memory = {"/nonexistent/memory", "/nonexistent/memory"};
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(1);
    ModuleNet net(model, {{"", "Net", -1, {{"embedding", 39}}}});
    auto optimizer = model.optimizer(acc::AdamW{});
    const acc::CheckpointSeries series(runtime, folder.path().string(), {});
    CHECK(!series.resume(model, optimizer));
    net.micro_step(acc::test::usual_gradient(0, 0));
    optimizer.step();
    CHECK(!series.keep_in_memory(model, optimizer, {}));
    runtime.barrier();
  });
}
