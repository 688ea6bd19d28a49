// SPDX-License-Identifier: Apache-2.0
#include "api/runtime_state.hpp"

#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/base/trace_file.hpp"
#include "acc/rendezvous/store.hpp"
#include "api/agreement.hpp"
#include "api/background_save.hpp"
#include "api/epoch_store.hpp"
#include "flight/recorder.hpp"
#include "model/model_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace acc::detail {
namespace {

/// Sets environment variables so that NCCL (algorithm, protocol, channels) and cuBLAS (workspaces)
/// make the same choices in every run; their own choices may depend on timing, and change the order
/// of sums. Must be called before these libraries are loaded. Variables that the user has set are
/// kept. On the CPU nothing needs to be set: sums run in rank order and over tiles of fixed size,
/// whatever the number of threads.
void pin_choices() {
  struct Choice {
    const char* variable;
    const char* value;
  };
  // NCCL chooses by its measurements of links. cuBLAS chooses internal workspaces by the streams
  // that are active at the same time (cuBLAS documentation, "Results Reproducibility").
  constexpr Choice kChoices[] = {
      {"NCCL_ALGO", "Ring"},       {"NCCL_PROTO", "Simple"},
      {"NCCL_MIN_NCHANNELS", "4"}, {"NCCL_MAX_NCHANNELS", "4"},
      {"NCCL_NVLS_ENABLE", "0"},   {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}};
  for (const Choice& choice : kChoices) {
    ::setenv(choice.variable, choice.value, /*overwrite=*/0);
  }
}

/// Throws Error(not_supported) if replicas on other machines do not have all state of a machine,
/// and the number of machines may change; Error(config) without memory for snapshots. is_for_epoch:
/// a runtime is made for each number of machines, of which one has a whole copy anyway.
void check_replicas(const settings::RuntimeSettings& settings, bool is_for_epoch) {
  if (!settings.elastic_replicas) {
    return;
  }
  const settings::WorkerIdentity& identity = settings.identity;
  const int shards = settings.sharding.shard_size;
  if (!settings::has_whole_copies(settings.sharding.strategy) &&
      !(is_for_epoch && identity.num_nodes == 1)) {
    throw Error(Errc::not_supported,
                fmt::format("elastic_replicas with {}: the state of a machine that is lost must be "
                            "whole on another one; use NO_SHARD or HYBRID_SHARD",
                            to_string(settings.sharding.strategy)));
  }
  if (settings.sharding.memory_checkpoint_every == 0) {
    throw Error(Errc::not_supported,
                "elastic_replicas needs snapshots in memory: set memory_checkpoint_every");
  }
  if (settings::switches(settings.sharding.strategy).replicate && shards > 0 &&
      identity.local_world_size % shards != 0) {
    throw Error(Errc::not_supported,
                fmt::format("elastic_replicas with a shard size of {} on machines of {} ranks: the "
                            "shards of a copy must lie on one machine",
                            shards, identity.local_world_size));
  }
  if (settings.snapshot_memory.empty()) {
    throw Error(Errc::config,
                "elastic_replicas needs memory for snapshots from the launcher: set "
                "memory_checkpoint_every for acclaunch, not in the program");
  }
}

}  // namespace

void check_supported(const settings::RuntimeSettings& settings) {
  const settings::ShardingSettings& asked = settings.sharding;
  check_series(asked);
  std::vector<std::string> refused;
  const auto refuse = [&](bool condition, const std::string& what) {
    if (condition) {
      refused.push_back(what);
    }
  };
  // Offload to the CPU is never refused: on the CPU device everything is in host memory anyway.
  const bool gpu = settings.device == settings::Device::cuda;
  refuse(gpu && asked.offload_param == settings::OffloadDevice::nvme,
         "offload of parameters to nvme on a GPU");
  refuse(gpu && asked.offload_optimizer == settings::OffloadDevice::nvme,
         "offload of the optimizer to nvme on a GPU");
  refuse(!asked.unsupported.empty(), asked.unsupported + " (of the DeepSpeed file)");
  if (!refused.empty()) {
    throw Error(Errc::not_supported,
                fmt::format("not in this version of libacc_runtime: {}", fmt::join(refused, "; ")));
  }
}

namespace {

/// Runtimes of this process with other ranks; and the process, which a child inherits.
struct Members {
  std::mutex mutex;
  int count = 0;
  std::optional<OwnProcess> owner;
};

Members& members() {
  static Members members;
  return members;
}

}  // namespace

/// A child has the environment of its parent, and would join the job as its parent's rank.
RuntimeState::Membership::Membership(const settings::WorkerIdentity& identity) {
  Members& all = members();
  if (all.owner && identity.world_size > 1) {
    all.owner->check(fmt::format("rank {} of the job", identity.rank));
  }
  const std::lock_guard lock(all.mutex);
  ++all.count;
  if (!all.owner) {
    all.owner.emplace();
  }
}

RuntimeState::Membership::~Membership() {
  Members& all = members();
  const std::lock_guard lock(all.mutex);
  if (--all.count == 0) {
    all.owner.reset();
  }
}

RuntimeState::RuntimeState(const settings::RuntimeSettings& wanted, ConnectStore connect)
    : membership_(wanted.identity), settings(wanted), connect_(std::move(connect)) {
  // The order matters: environment variables before libraries are loaded, the trace file before any
  // rank writes to it, and agreement before the first group. Local rank 0 has created the trace
  // file when the groups are made, for which every rank waits.
  set_log_settings(read_log_settings(log_words_from_environment()));
  set_log_rank(settings.identity.rank, settings.identity.world_size);
  check_supported(settings);
  if (settings.sharding.deterministic) {
    pin_choices();
  }
  compute = device::open_device(settings);
  const auto& identity = settings.identity;
  open_page();
  check_replicas(settings, fixed_epoch_.has_value());
  // A process that replaces another one adds to the trace of the ranks that have gone on.
  const bool replaces_one = page_ && !page_->is_first(page_->epoch());
  if (!settings.trace.empty() && identity.local_rank == 0 && !replaces_one) {
    create_trace(identity.restart_count);
  }
  open_snapshots();
  groups = meet();
  auto recorder = std::make_shared<flight::Recorder>(settings.flight_record, identity.rank);
  if (!settings.trace.empty()) {
    tracer =
        std::make_shared<trace::Tracer>(settings.trace, identity.rank, compute.device, recorder);
  }
  // Groups on a GPU report their collectives to the tracer themselves, through
  // Device::set_timeline.
  const bool on_host = compute.device->kind() == settings::Device::cpu;
  groups.record(std::move(recorder), tracer && on_host ? compute.device : nullptr);
  begin_recording();
  if (page_) {
    page_->joined(identity.local_rank, epoch_);
  }
}

/// Takes the number of the epoch off the path of the page ("PATH@EPOCH").
void RuntimeState::read_fixed_epoch() {
  std::string& path = settings.membership;
  const std::size_t at = path.rfind('@');
  if (at == std::string::npos) {
    return;
  }
  const auto epoch = parse_integer(path.substr(at + 1));
  if (!epoch || !std::in_range<std::uint32_t>(*epoch)) {
    throw Error(Errc::config, fmt::format("ACC_MEMBERSHIP is '{}', expected a path, or a path, '@' "
                                          "and the number of an epoch",
                                          path));
  }
  fixed_epoch_ = static_cast<std::uint32_t>(*epoch);
  path.resize(at);
}

/// The job goes on without a page that cannot be opened (by a worker in another container), unless
/// the others have their epochs from it.
void RuntimeState::open_page() {
  if (settings.membership.empty()) {
    return;
  }
  try {
    read_fixed_epoch();
    page_ = std::make_shared<MembershipPage>(settings.membership);
    settings.elastic_replicas = page_->changes() == MembershipPage::Changes::machines;
  } catch (const Error& error) {
    if (settings.membership.starts_with(MembershipPage::kRequired)) {
      throw Error(Errc::config, fmt::format("{}; with --rejoin the workers find each other by it, "
                                            "so they must see the processes of their launcher",
                                            error.what()));
    }
    logger(Component::runtime)
        .debug("changes of the job's membership are not seen: {}", error.what());
  }
}

/// Connects to the store of the current epoch, which may be on another machine than the last one.
void RuntimeState::connect() {
  settings::WorkerIdentity& identity = settings.identity;
  meets_ = std::make_shared<std::atomic<bool>>(true);
  if (page_) {
    epoch_ = fixed_epoch_.value_or(page_->epoch());
    if (page_->epoch() != epoch_) {
      throw Error(Errc::peer_lost, "the ranks of this round meet in the next one");
    }
    check_ = [page = page_, epoch = epoch_, meets = meets_] {
      page->check(epoch);
      if (*meets && page->has_ended(epoch)) {  // another rank may meet the others in the next one
        throw Error(Errc::peer_lost, "a machine joins the job while the ranks meet");
      }
    };
    check_();
  }
  if (replaces_ranks()) {
    settings.data_record.round = static_cast<int>(epoch_);
    if (const auto meeting = page_->meeting(epoch_)) {
      take_place(*meeting);
    }
  }
  auto watch = RoundWatch::make(settings, epoch_, meets_);
  store = connect_(identity, watch ? watch->token() : std::stop_token());
  round_watch = std::move(watch);
  if (replaces_ranks() && store != nullptr) {
    store = std::make_shared<EpochStore>(check_, epoch_, std::move(store));
  }
}

/// The number of ranks of a machine stays.
void RuntimeState::take_place(const MembershipPage::Meeting& meeting) {
  settings::WorkerIdentity& identity = settings.identity;
  if (!meeting.host.empty()) {
    identity.master_addr = meeting.host;
    identity.master_port = meeting.port;
    identity.job_secret = meeting.secret;
    identity.restart_count = meeting.restart_count;
  }
  if (meeting.num_machines > 0) {
    identity.node_rank = meeting.machine_rank;
    identity.num_nodes = meeting.num_machines;
    identity.rank = meeting.machine_rank * identity.local_world_size + identity.local_rank;
    identity.world_size = meeting.num_machines * identity.local_world_size;
    set_log_rank(identity.rank, identity.world_size);
  }
}

sharding::Groups RuntimeState::meet_in_epoch() {
  connect();
  if (settings.identity.world_size > 1 && store != nullptr) {
    check_agreement(settings, *store);
  }
  // Each round has a page, or goes on with one, in the epoch of its number. Rank 0 may lack it.
  history = agree_on_number(settings.identity, epoch_, settings.collective_timeout, store.get());
  save_id = static_cast<std::uint32_t>(history);
  auto made = sharding::make_groups(settings, store.get(), compute, check_);
  try {
    share_snapshots(made);
  } catch (const Error& error) {
    if (can_rejoin(error)) {  // others may have met, and would wait for this rank
      made.abort(error.what(), Errc::peer_lost);
    }
    throw;
  }
  *meets_ = false;
  return made;
}

sharding::Groups RuntimeState::meet() {
  while (true) {
    try {
      return meet_in_epoch();
    } catch (const Error& error) {
      if (!is_of_lost_rank(error) || !page_->await_change(epoch_, settings.collective_timeout) ||
          page_->round_end() || page_->begins_no_more()) {
        throw;
      }
    }
  }
}

/// True if ranks are lost, and a call that meets the others failed because of it. A store may be
/// gone some time before the launcher knows.
bool RuntimeState::is_of_lost_rank(const Error& error) const {
  constexpr std::chrono::seconds kUntilKnown{30};
  if (replaces_ranks() && !fixed_epoch_ && error.code() == Errc::connection) {
    const auto end = std::chrono::steady_clock::now() + kUntilKnown;
    while (!page_->has_ended(epoch_) && std::chrono::steady_clock::now() < end) {
      page_->await_news();
      if (page_->round_end()) {
        return false;
      }
    }
  }
  return can_rejoin(error);
}

/// A store on a machine that is lost fails in other ways than a group that has lost a rank.
bool RuntimeState::can_rejoin(const Error& error) const {
  const Errc code = error.code();
  return replaces_ranks() && !fixed_epoch_ &&
         (code == Errc::peer_lost ||
          (page_->has_ended(epoch_) &&
           (code == Errc::connection || code == Errc::collective || code == Errc::timeout)));
}

std::shared_ptr<ModelState> RuntimeState::check_rejoin() {
  if (!replaces_ranks()) {
    throw Error(Errc::not_supported,
                "this rank cannot rejoin its job, because the launcher replaces no ranks: start "
                "acclaunch with --rejoin");
  }
  if (fixed_epoch_) {
    throw Error(
        Errc::not_supported,
        "this rank cannot rejoin its job by itself: its program begins again in its process "
        "(--engine acc)");
  }
  std::erase_if(models, [](const auto& each) { return each.expired(); });
  if (models.size() > 1) {
    throw Error(Errc::not_supported,
                fmt::format("a rank with {} models cannot rejoin its job in this version, only one "
                            "with one model",
                            models.size()));
  }
  auto model = models.empty() ? nullptr : models.front().lock();
  if (model) {
    model->check_renew();
  }
  return model;
}

void RuntimeState::rejoin() {
  const auto model = check_rejoin();
  if (background_ != nullptr && !leaves_epoch_with_all()) {
    background_->abandon();  // it lacks the files of a rank that is gone
  }
  end_save();
  last_background_.reset();
  background_failure_.reset();  // unknown to new ranks; rank 0 has warned
  if (snapshots != nullptr) {
    snapshots->wait();  // it reads memory that the new groups replace
    snapshots->send_by(nullptr);
  }
  if (settings.elastic_replicas) {
    for (auto& [folder, each] : series) {
      each.last.reset();  // another rank may have been rank 0
    }
  }
  while (true) {
    groups.abort(
        fmt::format("rank {} gives up the groups of the last epoch", settings.identity.rank),
        Errc::peer_lost);
    groups.give_up();
    page_->await_next(epoch_, settings.collective_timeout);
    try {
      const sharding::Groups fresh = meet();
      groups.recorder->restart(settings.identity.rank);
      groups.renew(fresh);
      if (model) {
        model->renew(settings.identity, groups.plan);
      }
      begin_recording();
      page_->joined(settings.identity.local_rank, epoch_);
      return;
    } catch (const Error& error) {
      if (!can_rejoin(error)) {
        throw;
      }
    }
  }
}

/// Memory that cannot be opened (by a worker in a container of its own) costs only the snapshots:
/// of all ranks, since none is of use alone. Elastic replicas cannot go on without it.
void RuntimeState::open_snapshots() {
  if (settings.sharding.memory_checkpoint_every == 0 || settings.snapshot_memory.empty()) {
    return;
  }
  try {
    snapshots = std::make_unique<state_dict::SnapshotMemory>(
        settings.snapshot_memory, static_cast<std::size_t>(settings.identity.local_rank));
  } catch (const Error& error) {
    if (settings.elastic_replicas) {
      throw;
    }
    logger(Component::runtime).warn("no snapshots in memory: {}", error.what());
  }
}

void RuntimeState::share_snapshots(const sharding::Groups& all) {
  if (settings.sharding.memory_checkpoint_every == 0) {
    return;
  }
  std::array<double, 1> lacks = {snapshots == nullptr ? 1.0 : 0.0};
  all.world->all_reduce(lacks, ReduceOp::max)->wait();
  if (lacks[0] != 0.0) {
    snapshots.reset();
    return;
  }
  if (settings.elastic_replicas) {
    return;  // each replica has all that another machine needs
  }
  std::string why;
  if (auto neighbour = state_dict::NeighbourCopy::make(settings, all, *compute.device, store.get(),
                                                       check_, why)) {
    snapshots->send_by(std::move(neighbour));
  } else if (!why.empty() && settings.identity.rank == 0) {
    logger(Component::runtime).warn("no copies of snapshots on other machines: {}", why);
  }
}

/// A path that cannot be written is an error, which ends the job at its start. A disk that is full
/// or fails, or is gone when workers are started again, does not: writing the first events warns.
void RuntimeState::create_trace(int restart_count) const {
  try {
    create_trace_file(settings.trace);
  } catch (const TraceLost&) {
  } catch (const Error&) {
    if (restart_count == 0) {
      throw;
    }
  }
}

RuntimeState::~RuntimeState() {
  end_save();
}

}  // namespace acc::detail
