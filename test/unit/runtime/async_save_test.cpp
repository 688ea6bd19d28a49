// SPDX-License-Identifier: Apache-2.0
#include "acc/base/unique_fd.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/runtime.hpp"
#include "acc/runtime/checkpoint_series.hpp"
#include "support/module_net.hpp"
#include "support/run_ranks.hpp"
#include "support/saved_step.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Runtime::save_async: saves that are written beside the training.
namespace {

namespace fs = std::filesystem;
using acc::IfSaving;
using acc::settings::StateDictType;
using acc::settings::Strategy;
using acc::test::Job;
using acc::test::ModuleNet;
using acc::test::names_in;
using acc::test::TemporaryFolder;

/// Keeps writers from beginning, before they copy anything, or saves in flight: writers have
/// written their files, and wait here before they say so.
class Hold {
 public:
  void set(bool closed) {
    closed_ = closed;
    closed_.notify_all();
  }
  void pass() {
    ++visitors_;
    visitors_.notify_all();
    closed_.wait(true);
  }
  /// Waits until so many writers have come in all.
  void await(int count) const {
    for (int found = visitors_; found < count; found = visitors_) {
      visitors_.wait(found);
    }
  }

 private:
  std::atomic<bool> closed_{false};
  std::atomic<int> visitors_{0};
};

/// Where threads that write saves wait as soon as they run; null: nowhere.
std::atomic<Hold*> begin_hold{nullptr};

/// A store in which the writers of saves wait at a Hold, or cannot be reached.
class HeldStore : public acc::rendezvous::PrefixStore {
 public:
  HeldStore(std::shared_ptr<acc::rendezvous::Store> store, Hold& hold, bool lost = false)
      : PrefixStore("held", store), store_(std::move(store)), hold_(hold), lost_(lost) {}

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    if (key.starts_with("save/")) {
      hold_.pass();
      if (lost_) {
        throw acc::Error(acc::Errc::connection, "the store is lost");
      }
    }
    return PrefixStore::add(key, delta);
  }
  std::unique_ptr<acc::rendezvous::Store> clone() override {
    return std::make_unique<HeldStore>(store_->clone(), hold_, lost_);
  }

 private:
  std::shared_ptr<acc::rendezvous::Store> store_;
  Hold& hold_;
  bool lost_;
};

/// One rank of a job.
struct Rank {
  Rank(const acc::settings::RuntimeSettings& settings,
       std::unique_ptr<acc::rendezvous::Store> store, int numel)
      : runtime(acc::Runtime::from_settings(settings, std::move(store))),
        net(runtime.model(1),
            {{"", "Net", -1, {{"embedding", 39}, {"scale", 1, {.trainable = false}}}},
             {"block", "Block", 0, {{"weight", numel}, {"bias", 17, {.weight_decay = false}}}}}),
        optimizer(net.model().optimizer(acc::AdamW{.lr = 0.05, .weight_decay = 0.1})) {}

  acc::StepInfo step() {
    net.micro_step(acc::test::usual_gradient(runtime.rank(), 0));
    return optimizer.step();
  }
  acc::SavedState state() {
    return {.program = {{"step", optimizer.steps()}}, .of_rank = {{"rank", runtime.rank()}}};
  }
  void save(const std::string& path) { runtime.save(path, net.model(), optimizer, state()); }
  bool save_async(const std::string& path, IfSaving if_saving = IfSaving::wait) {
    return runtime.save_async(path, net.model(), optimizer, state(), if_saving);
  }

  acc::Runtime runtime;
  ModuleNet net;
  acc::Optimizer optimizer;
};

Job sharded_job(int ranks, Strategy strategy = Strategy::full_shard,
                StateDictType type = StateDictType::sharded, int shard_size = 0) {
  Job job = acc::test::job_of(strategy, ranks);
  job.sharding.state_dict_type = type;
  job.sharding.shard_size = shard_size;
  return job;
}

/// Runs `body(rank)` on every rank. The writers wait at `hold`.
void on_ranks(const Job& job, const std::function<void(Rank& rank)>& body, Hold& hold,
              int numel = 200) {
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    Rank rank(settings, std::make_unique<HeldStore>(std::move(store), hold), numel);
    body(rank);
    rank.runtime.barrier();
  });
}

/// The same, and nothing waits.
void on_ranks(const Job& job, const std::function<void(Rank& rank)>& body, int numel = 200) {
  Hold open;
  on_ranks(job, body, open, numel);
}

/// The files in a folder and below it, with their bytes.
std::map<std::string, std::string> bytes_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      std::ifstream file(entry.path(), std::ios::binary);
      files[entry.path().lexically_relative(folder).string()] = {
          std::istreambuf_iterator<char>(file), {}};
    }
  }
  return files;
}

}  // namespace

TEST_CASE("save_async writes the state at its call, whatever the training changes meanwhile") {
  const TemporaryFolder folder;
  std::vector<Job> jobs;
  for (const auto type : {StateDictType::sharded, StateDictType::local}) {
    jobs.push_back(sharded_job(1, Strategy::no_shard, type));
    jobs.push_back(sharded_job(2, Strategy::no_shard, type));
    jobs.push_back(sharded_job(3, Strategy::full_shard, type));
    jobs.push_back(sharded_job(4, Strategy::hybrid_shard, type, 2));
  }
  jobs.push_back(sharded_job(2, Strategy::shard_optimizer));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    CAPTURE(i);
    const std::string usual = (folder.path() / fmt::format("usual_{}", i)).string();
    const std::string beside = (folder.path() / fmt::format("beside_{}", i)).string();
    on_ranks(
        jobs[i],
        [&](Rank& rank) {
          rank.step();
          rank.save_async(beside);  // a second save uses the same memory again
          rank.step();
          rank.save(usual);
          CHECK(rank.save_async(beside));
          for (int step = 0; step < 4; ++step) {
            rank.step();
          }
          rank.runtime.wait_save();
          CHECK(!rank.runtime.saving());
        },
        300'000);
    const auto expected = bytes_of(usual);
    const auto found = bytes_of(beside);
    CHECK(found.size() == expected.size());
    for (const auto& [name, bytes] : expected) {
      CAPTURE(name);
      REQUIRE(found.contains(name));
      CHECK(found.at(name).size() == bytes.size());
      // .metadata has a number of its own in each save, and the manifest its checksum.
      CHECK((name.ends_with(".metadata") || name == "acc_checkpoint.json" ||
             found.at(name) == bytes));
    }
    CHECK(names_in(folder.path()).size() == 2 * (i + 1));
  }
}

namespace {

/// What may follow a call of save_async. weights: a file of weights.
struct Follow {
  std::string what;
  std::function<void(acc::Model& model, acc::Optimizer& optimizer,
                     const std::function<void()>& step, const std::string& weights)>
      happens;
};

void overwrite(std::span<const acc::ParameterShard> shards) {
  for (const acc::ParameterShard& each : shards) {
    if (each.dtype == acc::DType::float32) {
      std::fill_n(static_cast<float*>(each.weights), each.numel, 7.0F);
    }
  }
}

std::vector<acc::test::UnitSpec> matrix_specs(int rows) {
  return {{"", "Net", -1, {{"embedding", 39}, {"scale", 1, {.trainable = false}}}},
          {"block", "Block", 0, {{"weight", rows * 50, {}, acc::normal(0.5F), 50}, {"bias", 17}}}};
}

}  // namespace

// Before the thread of a save copies anything, it waits here.
extern "C" int pthread_setname_np(pthread_t /*thread*/, const char* name) noexcept {
  if (Hold* const hold = begin_hold;
      hold != nullptr && std::string_view(name).starts_with("acc-s")) {
    hold->pass();
  }
  return 0;
}

TEST_CASE("save_async writes the state at its call, whatever changes before its thread runs") {
  const std::vector<Follow> follows = {
      {"a step", [](auto&, auto&, const auto& step, const auto&) { step(); }},
      {"steps",
       [](auto&, auto&, const auto& step, const auto&) {
         step();
         step();
         step();
       }},
      {"a load of weights",
       [](auto& model, auto&, const auto&, const auto& weights) { model.load_weights(weights); }},
      {"a write to memory that the program gets afterwards",
       [](auto&, auto& optimizer, const auto&, const auto&) { overwrite(optimizer.shards()); }},
      {"the same, of the model",
       [](auto& model, auto&, const auto&, const auto&) { overwrite(model.shards()); }},
  };
  Job bfloat16 = sharded_job(2);
  bfloat16.sharding.mixed_precision = acc::settings::MixedPrecision::bf16;
  Job tiles = sharded_job(2);
  tiles.sharding.sub_group_size = 64;
  Job copies = sharded_job(2, Strategy::shard_optimizer);
  copies.copy_gathers = true;
  struct Case {
    Job job;
    acc::NamedRule rule = {"adamw", {{"lr", 0.05}}};
    bool by_program = false;   ///< the rule is the program's
    bool writes_kept = false;  ///< to memory that the program got before the save
  };
  const std::vector<Case> cases = {
      {sharded_job(1, Strategy::no_shard)},
      {sharded_job(3)},
      {sharded_job(2, Strategy::full_shard, StateDictType::local)},
      {sharded_job(4, Strategy::hybrid_shard, StateDictType::sharded, 2)},
      {bfloat16},
      {tiles},
      {copies},
      {sharded_job(2), {"sgd", {{"lr", 0.05}, {"momentum", 0.9}}}},
      {sharded_job(2), {"lamb", {{"lr", 0.05}}}},
      {sharded_job(2), {"muon", {{"lr", 0.05}}}},
      {.job = sharded_job(2), .by_program = true},
      {.job = sharded_job(2), .writes_kept = true},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const Follow& follow : follows) {
      CAPTURE(i);
      CAPTURE(follow.what);
      const TemporaryFolder folder;
      const std::string usual = (folder.path() / "usual").string();
      const std::string beside = (folder.path() / "beside").string();
      const std::string weights = (folder.path() / "weights.safetensors").string();
      Hold hold;
      begin_hold = &hold;
      acc::test::run_ranks(cases[i].job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model(1);
        ModuleNet net(model, matrix_specs(3000));
        auto optimizer =
            cases[i].by_program ? model.optimizer(acc::ProgramRule{[](const auto& shards) {
              for (const auto& each : shards) {
                std::transform(each.gradient, each.gradient + each.numel,
                               static_cast<float*>(each.weights), static_cast<float*>(each.weights),
                               [](float g, float w) { return w - 0.05F * g; });
              }
            }})
                                : model.optimizer(cases[i].rule);
        const auto step = [&] {
          net.micro_step(acc::test::usual_gradient(runtime.rank(), 0));
          optimizer.step();
        };
        model.export_weights(weights, {});
        step();
        const auto kept =
            cases[i].writes_kept ? optimizer.shards() : std::vector<acc::ParameterShard>{};
        runtime.save(usual, model, optimizer, {});
        hold.set(true);
        runtime.barrier();
        runtime.save_async(beside, model, optimizer, {});
        hold.await(runtime.world_size());  // the threads run, and have copied nothing
        overwrite(kept);
        follow.happens(model, optimizer, step, weights);
        runtime.barrier();
        CHECK(!fs::exists(beside));
        hold.set(false);
        runtime.wait_save();
        runtime.barrier();
      });
      begin_hold = nullptr;
      const auto expected = bytes_of(usual);
      const auto found = bytes_of(beside);
      CHECK(found.size() == expected.size());
      for (const auto& [name, bytes] : expected) {
        CAPTURE(name);
        REQUIRE(found.contains(name));
        CHECK((name.ends_with(".metadata") || name == "acc_checkpoint.json" ||
               found.at(name) == bytes));
      }
    }
  }
}

TEST_CASE("a snapshot in memory is of its call, whatever changes before its thread runs") {
  std::map<int, std::vector<float>> weights;  // after the third step: as made, as resumed
  for (const bool exposes : {false, true}) {  // the program has memory of the weights
    CAPTURE(exposes);
    Job job = sharded_job(2);
    job.sharding.memory_checkpoint_every = 2;
    const TemporaryFolder folder;
    const acc::UniqueFd files[] = {acc::UniqueFd(::memfd_create("snapshots", MFD_CLOEXEC)),
                                   acc::UniqueFd(::memfd_create("snapshots", MFD_CLOEXEC))};
    std::vector<std::string> paths;
    for (const acc::UniqueFd& file : files) {
      paths.push_back(fmt::format("/proc/self/fd/{}", file.get()));
    }
    Hold hold;
    const auto attempt = [&](bool resumes) {
      acc::test::run_ranks(job, [&](auto settings, auto store) {
        settings.snapshot_memory = paths;
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model(1);
        ModuleNet net(model, matrix_specs(3000));
        auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05});
        const acc::CheckpointSeries series(runtime, folder.path().string(), {});
        const auto step = [&] {
          net.micro_step(acc::test::usual_gradient(runtime.rank(), 0));
          optimizer.step();
        };
        CHECK(series.resume(model, optimizer).has_value() == resumes);
        if (!resumes) {
          step();
          step();
        }
        CHECK(optimizer.steps() == 2);
        if (resumes) {
          step();  // with the moments
        }
        const auto values = net.read().at("block.weight");
        if (!resumes) {
          const auto kept = exposes ? optimizer.shards() : std::vector<acc::ParameterShard>{};
          hold.set(true);
          runtime.barrier();
          CHECK(series.keep_in_memory(model, optimizer, {}));
          hold.await(2);  // the threads run, and have copied nothing
          overwrite(kept);
          step();
          if (!exposes && runtime.rank() == 0) {
            weights[0] = net.read().at("block.weight");
          } else if (!exposes) {
            static_cast<void>(net.read());
          }
          runtime.barrier();
          hold.set(false);
        } else if (!exposes && runtime.rank() == 0) {
          weights[1] = values;
        } else if (exposes && runtime.rank() == 0) {
          CHECK(values == weights[0]);  // of the run whose memory nobody has overwritten
        }
        runtime.barrier();
      });
    };
    begin_hold = &hold;
    attempt(false);
    begin_hold = nullptr;
    attempt(true);
    if (!exposes) {
      CHECK(weights[0] == weights[1]);
    }
  }
}

TEST_CASE("a model and an optimizer that end while their save is written wait for their copies") {
  const TemporaryFolder folder;
  const std::string usual = (folder.path() / "usual").string();
  const std::string beside = (folder.path() / "beside").string();
  Hold hold;
  begin_hold = &hold;
  acc::test::run_ranks(sharded_job(2), [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    {
      auto model = runtime.model(1);
      ModuleNet net(model, matrix_specs(3000));
      auto optimizer = model.optimizer(acc::AdamW{});
      net.micro_step(acc::test::usual_gradient(runtime.rank(), 0));
      optimizer.step();
      runtime.save(usual, model, optimizer, {});
      hold.set(true);
      runtime.barrier();
      runtime.save_async(beside, model, optimizer, {});
    }
    runtime.barrier();
    hold.set(false);
    runtime.wait_save();
    runtime.barrier();
  });
  begin_hold = nullptr;
  const auto found = bytes_of(beside);
  for (const auto& [name, bytes] : bytes_of(usual)) {
    CAPTURE(name);
    CHECK(
        (name.ends_with(".metadata") || name == "acc_checkpoint.json" || found.at(name) == bytes));
  }
}

TEST_CASE("one save is in flight: a second one waits, or is refused on all ranks") {
  const TemporaryFolder folder;
  const auto path = [&](int number) { return (folder.path() / std::to_string(number)).string(); };
  for (const int ranks : {2, 3}) {
    Hold hold;
    on_ranks(
        sharded_job(ranks),
        [&](Rank& rank) {
          rank.runtime.barrier();
          hold.set(true);
          rank.runtime.barrier();
          rank.save_async(path(1));
          CHECK(rank.runtime.saving());
          rank.step();
          CHECK(!rank.save_async(path(2), IfSaving::refuse));
          CHECK(!fs::exists(path(1)));
          CHECK(!fs::exists(path(2)));
          rank.runtime.barrier();
          hold.set(false);
          CHECK(rank.save_async(path(3)));
          CHECK(fs::exists(path(1)));
          rank.runtime.wait_save();
          CHECK(rank.save_async(path(4), IfSaving::refuse));
          CHECK(acc::test::step_of(rank.runtime.load(path(4), rank.net.model(), rank.optimizer)) ==
                1);
          rank.step();
          rank.save(path(5));
        },
        hold);
    CHECK(names_in(folder.path()) == std::set<std::string>{"1", "3", "4", "5"});
    for (const int number : {1, 3, 4, 5}) {
      fs::remove_all(path(number));
    }
  }
}

TEST_CASE("the end of a runtime waits for its save") {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "saved").string();
  acc::test::run_ranks(sharded_job(2), [&](const auto& settings, auto store) {
    Hold open;
    Rank rank(settings, std::make_unique<HeldStore>(std::move(store), open), 100'000);
    rank.step();
    rank.save_async(path);
  });
  CHECK(names_in(folder.path()) == std::set<std::string>{"saved"});
  on_ranks(
      sharded_job(1),
      [&](Rank& rank) {
        rank.runtime.load(path, rank.net.model(), rank.optimizer);
        CHECK(rank.optimizer.steps() == 1);
      },
      100'000);
}

TEST_CASE("a save beside the training that fails is reported on all ranks and disturbs nothing") {
  const TemporaryFolder folder;
  const std::string target = (folder.path() / "saved").string();
  folder.write("file", "x");
  folder.write("others/notes.txt", "x");
  struct Case {
    const char* what;
    std::string path;
    const char* said;
    rlim_t largest_file = 0;      ///< limits the file size; like a full disk, with another errno
    bool loses_folder = false;    ///< the temporary folder is removed before the commit
    const char* name = "number";  ///< of a value that rank 1 saves
  };
  for (const Case& each : {
           Case{"no folder", (folder.path() / "file" / "saved").string(), "file"},
           Case{"another folder", (folder.path() / "others").string(), "notes.txt"},
           Case{"full disk", target, "saved", 600},
           Case{"folder removed", target, "is gone", 0, true},
           Case{"wrong name on one rank", target, "reserved", 0, false, "acc.seed.x"},
       }) {
    CAPTURE(each.what);
    Hold hold;
    std::map<std::string, std::string> before;
    std::set<std::string> names;
    rlimit unlimited{};
    ::getrlimit(RLIMIT_FSIZE, &unlimited);
    auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
    std::mutex mutex;
    std::set<std::string> reasons;
    on_ranks(
        sharded_job(3),
        [&](Rank& rank) {
          rank.step();  // all memory that a step needs
          rank.save(target);
          rank.runtime.barrier();
          if (rank.runtime.rank() == 0) {
            before = bytes_of(target);
            names = names_in(folder.path());
            hold.set(each.loses_folder);
            const rlimit small{each.largest_file, unlimited.rlim_max};
            ::setrlimit(RLIMIT_FSIZE, each.largest_file != 0 ? &small : &unlimited);
          }
          rank.runtime.barrier();
          rank.step();
          acc::SavedState state;
          state.of_rank[rank.runtime.rank() == 1 ? each.name : "number"] = 1.0;
          rank.runtime.save_async(each.path, rank.net.model(), rank.optimizer, state);
          rank.step();
          if (each.loses_folder && rank.runtime.rank() == 0) {
            hold.await(3);  // all files are written
            for (const std::string& name : names_in(folder.path())) {
              if (name.find(".acc-tmp.") != std::string::npos) {
                fs::remove_all(folder.path() / name);
              }
            }
            hold.set(false);
          }
          try {
            rank.runtime.wait_save();
            FAIL_CHECK("saved");
          } catch (const acc::Error& error) {
            const std::lock_guard lock(mutex);
            CHECK(error.code() == acc::Errc::config);
            reasons.insert(error.what());
          }
          rank.runtime.wait_save();  // it has been reported
          ::setrlimit(RLIMIT_FSIZE, &unlimited);
          rank.runtime.barrier();
          CHECK(names_in(folder.path()) == names);
          CHECK(bytes_of(target) == before);
          rank.runtime.barrier();
          CHECK(rank.step().step == 4);
          rank.save_async(target);
          rank.runtime.wait_save();
        },
        hold);
    std::signal(SIGXFSZ, handler);
    ::setrlimit(RLIMIT_FSIZE, &unlimited);
    REQUIRE(reasons.size() == 1);
    CHECK_MESSAGE(reasons.begin()->find(each.said) != std::string::npos, *reasons.begin());
    CHECK(names_in(folder.path()) == names);
    CHECK(bytes_of(target) != before);
  }
}

TEST_CASE("a rank that dies while it writes: the save is given up, and the older one stays") {
  const TemporaryFolder folder;
  const std::string target = (folder.path() / "saved").string();
  Hold hold;
  std::latch all_save(2);
  acc::test::run_ranks(sharded_job(2), [&](const auto& settings, auto store) {
    const bool dies = settings.identity.rank == 1;
    Rank rank(settings, std::make_unique<HeldStore>(std::move(store), hold, dies), 200);
    rank.save(target);
    rank.runtime.barrier();
    const auto before = bytes_of(target);
    rank.runtime.barrier();
    rank.step();
    rank.save_async(target);
    all_save.arrive_and_wait();
    if (dies) {
      rank.runtime.abort("rank 1 died");
    }
    try {
      rank.runtime.wait_save();
      FAIL_CHECK("saved");
    } catch (const acc::Error& error) {
      const std::string expected = dies ? "the store is lost" : "1 of 2 ranks have written";
      CHECK_MESSAGE(std::string(error.what()).find(expected) != std::string::npos,
                    std::string(error.what()));
    }
    CHECK(bytes_of(target) == before);
  });
  CHECK(names_in(folder.path()) == std::set<std::string>{"saved"});
}

TEST_CASE("a series with save_async names only complete checkpoints and keeps its limit") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "series";
  Job job = sharded_job(2);
  job.sharding.save_async = true;
  Hold hold;
  on_ranks(
      job,
      [&](Rank& rank) {
        const acc::CheckpointSeries series(rank.runtime, path.string(), {.total_limit = 2});
        CHECK(!series.newest());
        for (int i = 0; i < 3; ++i) {
          rank.step();
          CHECK(series.save(rank.net.model(), rank.optimizer, rank.state()) ==
                path / fmt::format("checkpoint_{}", i));
        }
        CHECK(series.newest() == path / "checkpoint_2");
        rank.runtime.barrier();
        hold.set(true);
        rank.runtime.barrier();
        series.save(rank.net.model(), rank.optimizer, rank.state());
        rank.runtime.barrier();
        CHECK(!fs::exists(path / "checkpoint_3"));
        CHECK(bytes_of(path).at("latest") == "checkpoint_2");
        rank.runtime.barrier();
        hold.set(false);
        CHECK(series.newest() == path / "checkpoint_3");
        // A failed save leaves the series as it is, and the next one gets its number.
        rank.runtime.barrier();
        if (rank.runtime.rank() == 0) {
          hold.set(true);
        }
        rank.runtime.barrier();
        series.save(rank.net.model(), rank.optimizer, rank.state());
        if (rank.runtime.rank() == 0) {
          fs::create_directories(path / "checkpoint_4" / "in the way");
        }
        hold.set(false);
        CHECK_THROWS_WITH_AS(rank.runtime.wait_save(),
                             doctest::Contains("another job saves to the same series"), acc::Error);
        rank.runtime.barrier();
        if (rank.runtime.rank() == 0) {
          fs::remove_all(path / "checkpoint_4");
        }
        rank.runtime.barrier();
        CHECK(series.newest() == path / "checkpoint_3");
        series.save(rank.net.model(), rank.optimizer, rank.state());
        CHECK(series.newest() == path / "checkpoint_4");
      },
      hold);
  CHECK(names_in(path) == std::set<std::string>{"checkpoint_3", "checkpoint_4", "latest"});
}

TEST_CASE("save_async needs the memory of what a rank writes once, and reports it") {
  const TemporaryFolder folder;
  const int numel = 100'000;
  struct Case {
    Job job;
    double parts;  ///< of weights and two moments of all parameters
  };
  for (const Case& each :
       {Case{sharded_job(2), 0.5}, Case{sharded_job(1, Strategy::no_shard), 1.0},
        Case{sharded_job(4, Strategy::no_shard), 0.25},
        Case{sharded_job(4, Strategy::hybrid_shard, StateDictType::sharded, 2), 0.25},
        Case{sharded_job(2, Strategy::full_shard, StateDictType::local), 0.5}}) {
    on_ranks(
        each.job,
        [&](Rank& rank) {
          CHECK(rank.net.model().memory().snapshot_bytes == 0);
          rank.save((folder.path() / "usual").string());
          CHECK(rank.net.model().memory().snapshot_bytes == 0);
          for (int i = 0; i < 2; ++i) {
            rank.save_async((folder.path() / "saved").string());
            const auto found = static_cast<double>(rank.net.model().memory().snapshot_bytes);
            CHECK(found == doctest::Approx(each.parts * numel * 12).epsilon(0.05));
          }
        },
        numel);
  }
}

TEST_CASE("save_async is refused by name where a save gathers weights") {
  Job full = sharded_job(2, Strategy::full_shard, StateDictType::full);
  Job sixteen_bit = sharded_job(2);
  sixteen_bit.sharding.save_16bit_model = true;
  for (auto& [job, name] : {std::pair(&full, "fsdp_state_dict_type FULL_STATE_DICT"),
                            std::pair(&sixteen_bit, "zero3_save_16bit_model")}) {
    on_ranks(*job, [&, name = name](Rank& rank) {
      CHECK_THROWS_WITH_AS(rank.save_async("/nonexistent"), doctest::Contains(name), acc::Error);
    });
    job->sharding.save_async = true;
    CHECK_THROWS_WITH_AS(on_ranks(*job, [](Rank&) {}), doctest::Contains(name), acc::Error);
  }
}
