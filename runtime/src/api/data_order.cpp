// SPDX-License-Identifier: Apache-2.0
// What a DataOrder takes from the launcher: where to record, and the name of the attempt.
#include "acc/runtime/data_order.hpp"

#include "acc/base/variables.hpp"
#include "acc/settings/environment.hpp"
#include "api/runtime_state.hpp"
#include "collectives/keyed_hash.hpp"
#include "data/order.hpp"

#include <fmt/format.h>

#include <memory>
#include <utility>

namespace acc {
namespace {

/// The name is the same on all ranks, and no other attempt has it: the secret is drawn for a job,
/// and each of its rounds has a number. Another launcher sets neither; then a job that is started
/// again with the same run id, address and port would have the same name, and Record refuses it.
std::string attempt_of(const settings::RuntimeSettings& settings) {
  const settings::WorkerIdentity& identity = settings.identity;
  const std::string text =
      identity.job_secret.empty()
          ? fmt::format("data record {} {} {} {}", identity.run_id, identity.master_addr,
                        identity.master_port, identity.restart_count)
          : fmt::format("data record {}", settings.data_record.round);
  const auto hash = collectives::keyed_hash(collectives::hash_key(identity.job_secret), text);
  return fmt::format("{:016x}", hash);
}

data::Recording recording_of(const settings::RuntimeSettings& settings) {
  if (settings.data_record.folder.empty()) {
    return {};
  }
  return {.folder = settings.data_record.folder,
          .attempt = attempt_of(settings),
          .rank = settings.identity.rank,
          .world_size = settings.identity.world_size};
}

/// Returns what orders without a runtime record: what is known of the job's last round, from the
/// runtime of the process or from its environment. Used by the thread that trains.
std::shared_ptr<const data::Recording> recording_of_process(
    const settings::RuntimeSettings& settings) {
  static const auto recording = std::make_shared<data::Recording>();
  static int round = -1;
  if (settings.data_record.round >= round) {
    round = settings.data_record.round;
    *recording = recording_of(settings);
  }
  return recording;
}

}  // namespace

void detail::RuntimeState::begin_recording() {
  *recording = recording_of(settings);
  if (!recording->folder.empty()) {
    recording_of_process(settings);
  }
}

DataOrder::DataOrder(const Runtime& runtime, DataOptions options)
    : state_(std::make_unique<detail::DataOrderState>(std::move(options),
                                                      runtime.state_->recording)) {}

DataOrder DataOrder::from_environment(DataOptions options) {
  DataOrder order(std::move(options));
  if (process_variable(kDataRecordVariable)) {
    order.state_ = std::make_unique<detail::DataOrderState>(
        order.options(),
        recording_of_process(settings::settings_from_environment(settings::current_environment())));
  }
  return order;
}

}  // namespace acc
