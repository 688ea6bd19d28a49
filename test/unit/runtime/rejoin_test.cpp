// SPDX-License-Identifier: Apache-2.0
#include "acc/base/membership_page.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/server.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "acc/runtime.hpp"
#include "acc/runtime/checkpoint_series.hpp"
#include "support/module_net.hpp"
#include "support/run_ranks.hpp"
#include "support/saved_step.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

// Ranks, as processes, of which some are killed and replaced while the others go on.
namespace {

namespace fs = std::filesystem;
using acc::Errc;
using acc::Error;
using acc::MembershipPage;
using acc::settings::Strategy;
using acc::test::Job;
using acc::test::ModuleNet;
using acc::test::TemporaryFolder;

constexpr int kSteps = 8;
constexpr int kEvery = 2;  ///< steps from one snapshot in memory to the next

/// Where in a step a rank is killed. Those of a snapshot in memory are calls of its thread: it is
/// begun, has all its values, or says that it is whole; the same for the copy that another machine
/// sends. `in_save` is before the first file of a save is on disk.
enum class Place {
  forward,
  backward,
  before_step,
  before_save,
  while_peers_save,
  in_save,
  snapshot_begun,
  snapshot_written,
  snapshot_whole,
  copy_begun,
  copy_written,
  copy_whole,
};

struct Kill {
  int rank;
  int step;  ///< number of steps made before it
  Place place;
};

/// The kill of this process by a call of the system.
std::optional<Kill> kill_by_call;

bool dies_at(Place place) {
  return kill_by_call && kill_by_call->place == place;
}

/// Writes to the memory for snapshots as pwrite does. Each head, at a multiple of 4 TiB, is written
/// twice: when a snapshot is begun, and when it is whole. The first two are of this rank.
ssize_t write_memory(int file, const void* bytes, std::size_t nbytes, off_t at) {
  constexpr off_t kPlace = off_t{1} << 42;
  const auto write = [&] { return ::syscall(SYS_pwrite64, file, bytes, nbytes, at); };
  if (!kill_by_call || at % kPlace != 0) {
    return write();
  }
  static std::array<std::atomic<int>, 2> heads;  // own, of copies
  const bool is_copy = at >= 2 * kPlace;
  const int number = ++heads[is_copy ? 1 : 0];
  const int is_whole = kill_by_call->step / kEvery * 2;  // number of the last head of that step
  if (number == is_whole && dies_at(is_copy ? Place::copy_written : Place::snapshot_written)) {
    ::kill(::getpid(), SIGKILL);
  }
  const ssize_t done = write();
  if ((number == is_whole && dies_at(is_copy ? Place::copy_whole : Place::snapshot_whole)) ||
      (number == is_whole - 1 && dies_at(is_copy ? Place::copy_begun : Place::snapshot_begun))) {
    ::kill(::getpid(), SIGKILL);
  }
  return done;
}

/// A process; killed with the test.
pid_t run_process(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 1;
    try {
      body();
      status = 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rejoin_test: %s\n", error.what());
    }
    std::_Exit(status);
  }
  return child;
}

/// A store in a process of its own, because the processes of ranks are made by fork.
class StoreProcess {
 public:
  StoreProcess() {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    pid_ = run_process([&] {
      boost::asio::io_context io;
      const acc::rendezvous::Server server(io, "127.0.0.1", 0, {.forms_rounds = false});
      const std::uint16_t port = server.port();
      (void)!::write(pipe[1], &port, sizeof port);
      io.run();
    });
    REQUIRE(::read(pipe[0], &port_, sizeof port_) == sizeof port_);
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  ~StoreProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  void freeze() const { ::kill(pid_, SIGSTOP); }
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;

  [[nodiscard]] std::unique_ptr<acc::rendezvous::Store> connect(const std::string& run) const {
    return std::make_unique<acc::rendezvous::PrefixStore>(
        run,
        std::make_unique<acc::rendezvous::TcpStore>("127.0.0.1", port_, std::chrono::seconds(30)));
  }

 private:
  pid_t pid_ = 0;
  std::uint16_t port_ = 0;
};

/// What a rank holds. Connections to the store are counted apart: the groups of the training, and
/// those of the snapshots, have a board of long waits each, which connects at the first one. On a
/// busy machine that is any wait, before or after a rank is lost.
struct Held {
  static constexpr std::ptrdiff_t kBoards = 2;
  std::ptrdiff_t descriptors = 0;  ///< others than connections to the store
  std::ptrdiff_t connections = 0;
  std::ptrdiff_t mappings = 0;  ///< of memory that ranks share

  [[nodiscard]] bool is_like(const Held& other) const {
    return descriptors == other.descriptors && mappings == other.mappings &&
           std::abs(connections - other.connections) <= kBoards;
  }
};

/// True for a connection to the store, also while it is made or closed.
bool is_to_store(int fd, std::uint16_t store_port) {
  sockaddr_in own{};
  sockaddr_in peer{};
  socklen_t length = sizeof own;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      own.sin_family != AF_INET) {
    return false;
  }
  int listens = 0;
  length = sizeof listens;
  ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
  length = sizeof peer;
  return ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0
             ? ntohs(peer.sin_port) == store_port
             : listens == 0;
}

Held held(std::uint16_t store_port) {
  Held found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    found.mappings += line.find("memfd:acc") != std::string::npos ? 1 : 0;
  }
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    ++(is_to_store(std::stoi(entry.path().filename()), store_port) ? found.connections
                                                                   : found.descriptors);
  }
  return found;
}

/// The process of one rank.
struct Rank {
  const Job& job;
  const StoreProcess& store;
  std::string page;                   ///< path of the membership page
  std::vector<std::string> memories;  ///< paths of the memory for snapshots, by rank
  fs::path folder;
  std::optional<Kill> kill;
  acc::NamedRule rule;
  bool is_pure = true;  ///< its initial values can be made again

  void die_at(Place place, const acc::Optimizer& optimizer) const {
    if (kill && kill->place == place && optimizer.steps() == kill->step) {
      ::kill(::getpid(), SIGKILL);
    }
  }

  void run(int rank) const {
    kill_by_call = kill;
    auto settings = acc::test::settings_of(job, rank);
    settings.membership = page;
    const auto& identity = settings.identity;
    const auto first =
        memories.begin() + std::ptrdiff_t{identity.node_rank} * identity.local_world_size;
    settings.snapshot_memory.assign(first, first + identity.local_world_size);
    auto runtime = acc::Runtime::from_settings(settings, store.connect(folder.string()));
    auto model = runtime.model(1);
    const acc::Initializer half(
        [](std::uint64_t, std::int64_t, std::span<float> out) { std::ranges::fill(out, 0.5F); });
    const acc::Initializer initializer = is_pure ? acc::normal(0.5F) : half;
    ModuleNet net(
        model, {{"", "Net", -1, {{"embedding", 39, {}, initializer}}},
                {"block", "Block", 0, {{"weight", 140, {}, acc::normal(0.5F), 14}, {"bias", 17}}},
                {"head", "Head", 0, {{"weight", 61}}}});
    auto optimizer = model.optimizer(rule);
    const acc::CheckpointSeries series(runtime, (folder / "series").string(), {});
    (void)series.resume(model, optimizer);
    std::map<std::string, const void*> addresses;
    std::optional<Held> held_before;
    const auto look = [&](std::size_t unit) {
      if (net.unit(unit).keeps_addresses()) {
        const auto guard = model.no_grad();
        auto use = net.unit(unit).forward();
        const void* const now = use.raw(net.parameter(unit, 0));
        use.end();
        const auto [known, is_new] = addresses.try_emplace(net.unit(unit).name(), now);
        if (!is_new && known->second != now) {
          throw std::runtime_error("the address of unit " + known->first + " has changed");
        }
      }
    };
    bool has_rejoined = false;
    while (optimizer.steps() < kSteps) {
      try {
        step(runtime, net, optimizer, series, rank);
        look(1);
        look(2);
        if (!held_before && optimizer.steps() == 2) {
          held_before = held(store.port());
        }
      } catch (const Error& error) {
        if (error.code() != Errc::peer_lost) {
          throw;
        }
        // Everything fails until the rank rejoins, in the same way.
        try {
          runtime.barrier();
          throw std::runtime_error("a collective of a lost group succeeded");
        } catch (const Error& again) {
          if (again.code() != Errc::peer_lost) {
            throw;
          }
        }
        (void)series.rejoin(model, optimizer);
        has_rejoined = true;
      }
    }
    write_weights(net, rank);
    runtime.wait_save();  // one beside the training holds a connection
    // Threads of groups and of the store close their connections later than the call that ends
    // them.
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    const auto is_apart = [&](const Held& now) {
      return has_rejoined && held_before && !now.is_like(*held_before);
    };
    Held now = held(store.port());
    while (is_apart(now) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      now = held(store.port());
    }
    if (is_apart(now)) {
      throw std::runtime_error(fmt::format(
          "{} descriptors, {} connections to the store and {} mappings before, {}, {} and {} after",
          held_before->descriptors, held_before->connections, held_before->mappings,
          now.descriptors, now.connections, now.mappings));
    }
    runtime.barrier();
  }

  void write_weights(ModuleNet& net, int rank) const {
    std::ofstream out(folder / fmt::format("weights.{}", rank));
    for (const auto& [name, values] : net.read()) {
      out << name;
      for (const float value : values) {
        out << fmt::format(" {:a}", value);
      }
      out << "\n";
    }
  }

  void step(acc::Runtime& runtime, ModuleNet& net, acc::Optimizer& optimizer,
            const acc::CheckpointSeries& series, int rank) const {
    if (kill && kill->place == Place::forward && optimizer.steps() == kill->step) {
      const auto use = net.unit(0).forward();
      ::kill(::getpid(), SIGKILL);
    }
    const auto gradient = acc::test::usual_gradient(rank, static_cast<int>(optimizer.steps()));
    net.micro_step([&](const std::string& name, int element, float weight) {
      die_at(Place::backward, optimizer);
      return gradient(name, element, weight);
    });
    die_at(Place::before_step, optimizer);
    optimizer.step();
    (void)runtime.mean(1.0);
    die_at(Place::before_save, optimizer);
    (void)series.keep_in_memory(net.model(), optimizer, acc::test::at_step(optimizer.steps()));
    if (optimizer.steps() == 3) {
      if (kill && kill->place == Place::while_peers_save) {
        ::kill(::getpid(), SIGKILL);
      }
      series.save(net.model(), optimizer, acc::test::at_step(optimizer.steps()));
      if (dies_at(Place::in_save)) {
        runtime.wait_save();  // does not return
      }
    }
  }
};

constexpr int kRefused = 17;  ///< exit status

/// Runs a job as its launcher would: replaces the ranks that are killed. Returns the weights of all
/// ranks, as text. is_refused: all ranks are to find that they cannot go on.
std::vector<std::string> run_job(const Job& job, const StoreProcess& store,
                                 const std::vector<Kill>& kills, bool is_refused = false,
                                 const std::string& rule = "adamw") {
  const TemporaryFolder folder;
  auto page = MembershipPage::create(MembershipPage::Changes::processes);
  const auto path_of = [](int fd) { return fmt::format("/proc/{}/fd/{}", ::getpid(), fd); };
  std::vector<acc::UniqueFd> memories;
  std::vector<std::string> paths;
  std::map<pid_t, int> ranks;
  std::vector<bool> was_killed(static_cast<std::size_t>(job.world_size));
  const auto start = [&](int rank, std::optional<Kill> kill) {
    const Rank process{.job = job,
                       .store = store,
                       .page = path_of(page.fd()),
                       .memories = paths,
                       .folder = folder.path(),
                       .kill = kill,
                       .rule = {rule, {{"lr", 0.05}, {"weight_decay", 0.1}}},
                       .is_pure = !is_refused};
    ranks[run_process([&] {
      try {
        process.run(rank);
      } catch (const Error& error) {
        if (error.code() != Errc::not_supported) {
          throw;
        }
        std::_Exit(kRefused);
      }
    })] = rank;
  };
  for (int rank = 0; rank < job.world_size; ++rank) {
    memories.emplace_back(::memfd_create("snapshots", MFD_CLOEXEC));
    paths.push_back(path_of(memories.back().get()));
  }
  for (int rank = 0; rank < job.world_size; ++rank) {
    std::optional<Kill> own;
    for (const Kill& kill : kills) {
      own = kill.rank == rank ? std::optional(kill) : own;
    }
    start(rank, own);
  }
  bool all_ended_well = true;
  int num_refused = 0;
  while (!ranks.empty()) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    const auto found = ranks.find(ended);
    if (found == ranks.end()) {
      continue;
    }
    const int rank = found->second;
    ranks.erase(found);
    if (WIFSIGNALED(status) && !was_killed[static_cast<std::size_t>(rank)]) {
      was_killed[static_cast<std::size_t>(rank)] = true;
      page.end_epoch();
      page.begin_epoch(page.epoch() + 1, {});
      start(rank, {});
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused) {
      ++num_refused;
    } else if (status != 0) {
      all_ended_well = false;
      page.end_round("a rank has failed");
    }
  }
  CHECK(all_ended_well);
  CHECK(num_refused == (is_refused ? job.world_size : 0));
  for (const Kill& kill : kills) {
    CHECK(was_killed[static_cast<std::size_t>(kill.rank)]);
  }
  std::vector<std::string> weights;
  for (int rank = 0; rank < job.world_size; ++rank) {
    const fs::path file = folder.path() / fmt::format("weights.{}", rank);
    weights.push_back(fs::exists(file) ? acc::test::file_text(file.string()) : "");
  }
  return weights;
}

Job job_of(Strategy strategy, int ranks, int machines = 1) {
  Job job = acc::test::job_of(strategy, ranks, machines);
  job.sharding.memory_checkpoint_every = kEvery;
  job.sharding.shard_size = strategy == Strategy::hybrid_shard ? ranks / 2 : 0;
  return job;
}

}  // namespace

// In the place of those of libc, also for the runtime.
extern "C" [[gnu::visibility("default")]] ssize_t pwrite(int file, const void* bytes,
                                                         std::size_t nbytes, off_t at) {
  return write_memory(file, bytes, nbytes, at);
}
extern "C" [[gnu::visibility("default")]] int fsync(int file) {
  if (dies_at(Place::in_save)) {
    ::kill(::getpid(), SIGKILL);
  }
  return static_cast<int>(::syscall(SYS_fsync, file));
}

TEST_CASE("ranks go on in their processes when another one is killed and replaced") {
  const StoreProcess store;
  struct Layout {
    std::string name;
    Job job;
    std::vector<std::vector<Kill>> histories;
  };
  Job copies = job_of(Strategy::full_shard, 2);
  copies.copy_gathers = true;
  Job beside = job_of(Strategy::full_shard, 2);
  beside.sharding.save_async = true;
  const std::vector<Layout> layouts = {
      {"shm, all places",
       job_of(Strategy::full_shard, 3),
       {{{1, 4, Place::forward}},
        {{1, 5, Place::backward}},
        {{0, 4, Place::before_step}},
        {{2, 5, Place::before_save}},
        {{1, 3, Place::while_peers_save}},
        {{0, 0, Place::backward}},
        {{1, 4, Place::snapshot_begun}},
        {{0, 4, Place::snapshot_written}},
        {{2, 4, Place::snapshot_whole}},
        {{1, 3, Place::in_save}},
        {{1, 5, Place::backward}, {2, 5, Place::backward}}}},
      {"whole gradients", job_of(Strategy::shard_grad_op, 2), {{{0, 5, Place::backward}}}},
      {"replicas", job_of(Strategy::no_shard, 2), {{{1, 4, Place::before_step}}}},
      {"hybrid", job_of(Strategy::hybrid_shard, 4), {{{3, 5, Place::backward}}}},
      {"copied gathers", copies, {{{1, 4, Place::backward}}}},
      {"saves beside the training",
       beside,
       {{{1, 3, Place::while_peers_save}}, {{1, 3, Place::in_save}}, {{0, 3, Place::in_save}}}},
      {"gloo",
       job_of(Strategy::full_shard, 2, 2),
       {{{1, 4, Place::backward}},
        {{1, 4, Place::copy_begun}},
        {{0, 4, Place::copy_written}},
        {{1, 4, Place::copy_whole}},
        {{0, 6, Place::snapshot_written}}}},
      {"hierarchical",
       job_of(Strategy::full_shard, 4, 2),
       {{{1, 5, Place::backward}}, {{0, 4, Place::before_step}}}},
  };
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name);
    const auto expected = run_job(layout.job, store, {});
    REQUIRE_FALSE(expected.front().empty());
    for (const auto& history : layout.histories) {
      CAPTURE(history.front().rank);
      CAPTURE(static_cast<int>(history.front().place));
      CHECK(run_job(layout.job, store, history) == expected);
    }
  }
}

TEST_CASE("states of matrices on their owners, and those beside them, go on when a rank is lost") {
  const StoreProcess store;
  for (const auto& [strategy, ranks] :
       {std::pair{Strategy::full_shard, 3}, std::pair{Strategy::shard_grad_op, 2},
        std::pair{Strategy::no_shard, 2}, std::pair{Strategy::hybrid_shard, 4}}) {
    for (const char* const rule : {"soap", "muon"}) {
      CAPTURE(to_string(strategy));
      CAPTURE(rule);
      const Job job = job_of(strategy, ranks);
      const auto expected = run_job(job, store, {}, false, rule);
      REQUIRE_FALSE(expected.front().empty());
      CHECK(run_job(job, store, {{1, 5, Place::backward}}, false, rule) == expected);
    }
  }
}

TEST_CASE("without a checkpoint and initial values no rank goes on, also not the new one") {
  const StoreProcess store;
  Job job = job_of(Strategy::full_shard, 3);
  job.sharding.memory_checkpoint_every = 0;
  run_job(job, store, {{1, 1, Place::backward}}, /*is_refused=*/true);
}

TEST_CASE("a rank whose launcher replaces none cannot rejoin, and says so") {
  const auto page = MembershipPage::create(MembershipPage::Changes::nothing);
  for (const bool has_page : {false, true}) {
    acc::settings::RuntimeSettings settings;
    settings.membership = has_page ? fmt::format("/proc/self/fd/{}", page.fd()) : "";
    const TemporaryFolder folder;
    auto runtime = acc::Runtime::from_settings(settings, nullptr);
    auto model = runtime.model(1);
    ModuleNet net(model, {{"", "Net", -1, {{"weight", 3}}}});
    auto optimizer = model.optimizer(acc::Sgd{});
    const acc::CheckpointSeries series(runtime, folder.path().string(), {});
    try {
      (void)series.rejoin(model, optimizer);
      FAIL("it has rejoined");
    } catch (const Error& error) {
      CHECK(error.code() == Errc::not_supported);
      CHECK(std::string(error.what()).find("--rejoin") != std::string::npos);
    }
  }
}

TEST_CASE("a rank that cannot open the page by which the others meet ends at once") {
  acc::settings::RuntimeSettings settings;
  settings.membership = "required:/proc/self/fd/1000000";
  try {
    (void)acc::Runtime::from_settings(settings, nullptr);
    FAIL("it has not looked");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::config);
    CHECK(std::string(error.what()).find("with --rejoin") != std::string::npos);
  }
}

TEST_CASE("a rank whose state no other machine has refuses that machines come and go") {
  const auto page = MembershipPage::create(MembershipPage::Changes::machines);
  struct Case {
    Strategy strategy;
    int shard_size;
    int every;
    std::string why;
  };
  for (const Case& each :
       {Case{Strategy::full_shard, 0, 1, "with full_shard"},
        Case{Strategy::shard_optimizer, 0, 1, ""},
        Case{Strategy::hybrid_shard, 2, 1, "a shard size of 2 on machines of 1 ranks"},
        Case{Strategy::no_shard, 0, 0, "set memory_checkpoint_every"}}) {
    acc::settings::RuntimeSettings settings;
    settings.membership = fmt::format("/proc/self/fd/{}", page.fd());
    settings.sharding.strategy = each.strategy;
    settings.sharding.shard_size = each.shard_size;
    settings.sharding.memory_checkpoint_every = each.every;
    try {
      (void)acc::Runtime::from_settings(settings, nullptr);
      FAIL("it is not refused: " << each.why);
    } catch (const Error& error) {
      CHECK(error.code() == Errc::not_supported);
      CHECK(std::string(error.what()).find("elastic_replicas") == 0);
      CHECK(std::string(error.what()).find(each.why) != std::string::npos);
    }
  }
}

TEST_CASE("groups of an epoch that ends between steps work until ranks of the next one are lost") {
  auto page = MembershipPage::create(MembershipPage::Changes::machines);
  page.begin_epoch(3, {.machine_rank = 1, .num_machines = 2});
  CHECK_FALSE(page.has_ended(3));
  page.end_epoch_between_steps();
  CHECK(page.has_ended(3));
  CHECK_FALSE(page.has_lost(3));
  CHECK_NOTHROW(page.check(3));
  page.begin_epoch(4, {.machine_rank = 2, .num_machines = 3});
  CHECK(page.has_ended(3));
  CHECK_NOTHROW(page.check(3));
  const auto meeting = page.meeting(4);
  REQUIRE(meeting);
  CHECK(meeting->machine_rank == 2);
  CHECK(meeting->num_machines == 3);
  page.end_epoch_between_steps();  // another machine joins before the step of epoch 3 is over
  page.begin_epoch(5, {.machine_rank = 3, .num_machines = 4});
  CHECK_NOTHROW(page.check(3));
  page.end_epoch();
  for (const std::uint32_t epoch : {3U, 4U, 5U}) {
    CHECK(page.has_lost(epoch));
    CHECK_THROWS_AS(page.check(epoch), Error);
  }
}

/// Tells when a rank waits for another one.
class NotedStore : public acc::rendezvous::PrefixStore {
 public:
  NotedStore(std::shared_ptr<Store> store, std::atomic<bool>& waits)
      : PrefixStore("noted", std::move(store)), waits_(waits) {}

  void wait(std::span<const std::string> keys, Milliseconds timeout) override {
    waits_ = true;
    waits_.notify_all();
    PrefixStore::wait(keys, timeout);
  }

 private:
  std::atomic<bool>& waits_;
};

TEST_CASE("a rank that meets the others when a machine joins meets them in the next epoch") {
  for (const int machines : {1, 2}) {
    auto page = MembershipPage::create(MembershipPage::Changes::machines);
    page.begin_epoch(3, {});
    auto job = job_of(Strategy::no_shard, 2, machines);
    job.sharding.memory_checkpoint_every = 1;
    std::vector<acc::UniqueFd> memories;
    memories.reserve(2);
    std::atomic<bool> waits = false;
    for (int rank = 0; rank < 2; ++rank) {
      memories.emplace_back(::memfd_create("snapshots", MFD_CLOEXEC));
    }
    acc::test::run_ranks(job, [&](auto settings, auto store) {
      const int rank = settings.identity.rank;
      settings.membership = fmt::format("/proc/self/fd/{}", page.fd());
      for (int i = machines == 1 ? 0 : rank; i < (machines == 1 ? 2 : rank + 1); ++i) {
        settings.snapshot_memory.push_back(
            fmt::format("/proc/self/fd/{}", memories[static_cast<std::size_t>(i)].get()));
      }
      if (rank == 1) {
        waits.wait(false);
        page.end_epoch_between_steps();
        page.begin_epoch(4, {});
      }
      auto runtime = acc::Runtime::from_settings(
          settings, std::make_unique<NotedStore>(std::move(store), waits));
      runtime.barrier();
    });
  }
}

TEST_CASE("ranks do not wait for an epoch that will not begin") {
  auto page = MembershipPage::create(MembershipPage::Changes::processes);
  page.begin_epoch(0, {});
  CHECK_FALSE(page.await_change(0, std::chrono::milliseconds(0)));
  page.begin_no_more();
  CHECK(page.await_change(0, std::chrono::milliseconds(0)));
  CHECK(page.begins_no_more());
  CHECK_NOTHROW(page.check(0));
}

TEST_CASE("a round that is over ends the waits of its ranks with the reason") {
  for (const int machines : {1, 2}) {
    auto page = MembershipPage::create(MembershipPage::Changes::nothing);
    std::optional<Errc> code;  // of rank 1, like `said`
    std::string said;
    std::atomic<bool> has_ended = false;
    acc::test::run_ranks(job_of(Strategy::full_shard, 2, machines), [&](auto settings, auto store) {
      const int rank = settings.identity.rank;
      settings.membership = fmt::format("/proc/self/fd/{}", page.fd());
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      try {
        if (rank == 0) {
          page.end_round("machine 3 is\nlost");
          page.end_round("another reason");
        }
        while (rank == 1) {  // NOLINT(bugprone-infinite-loop): rank 0 takes part in no barrier
          runtime.barrier();
        }
      } catch (const Error& error) {
        code = error.code();
        said = error.what();
        has_ended = true;
        has_ended.notify_all();
      }
      if (rank == 0) {  // which must not leave before
        has_ended.wait(false);
      }
    });
    CHECK(code == Errc::peer_lost);
    CHECK(said.starts_with("machine 3 is"));
    CHECK(said.find('\n') == std::string::npos);
  }
}

TEST_CASE("a round that is over ends waits for a store on a machine that is lost") {
  const StoreProcess store;
  auto page = MembershipPage::create(MembershipPage::Changes::nothing);
  std::map<pid_t, int> ranks;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  for (const int rank : {0, 1}) {
    auto settings = acc::test::settings_of(job_of(Strategy::full_shard, 2, 2), rank);
    settings.membership = fmt::format("/proc/self/fd/{}", page.fd());
    settings.identity.master_port = store.port();
    ranks[run_process([&] {
      auto runtime = acc::Runtime::from_settings(settings);
      (void)!::write(ready[1], "x", 1);
      if (rank == 1) {  // as a machine without power
        ::raise(SIGSTOP);
      }
      try {
        runtime.barrier();
      } catch (const Error& error) {
        if (error.code() != Errc::peer_lost || std::string(error.what()).find("no power") != 0) {
          throw;
        }
        std::_Exit(17);
      }
    })] = rank;
  }
  char byte = 0;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(::read(ready[0], &byte, 1) == 1);
  }
  store.freeze();
  page.end_round("no power");
  while (!ranks.empty()) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    const auto found = ranks.find(ended);
    if (found != ranks.end() && found->second == 0) {
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 17);
      std::erase_if(ranks, [](const auto& each) { return each.second == 0; });
      ::kill(ranks.begin()->first, SIGKILL);
    } else if (found != ranks.end()) {
      ranks.erase(found);
    }
  }
  ::close(ready[0]);
  ::close(ready[1]);
}
