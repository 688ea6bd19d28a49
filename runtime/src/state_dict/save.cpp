// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/object_store.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/model_files.hpp"
#include "state_dict/saved_arrays.hpp"
#include "state_dict/snapshot.hpp"
#include "state_dict/snapshot_writer.hpp"

#include <fmt/format.h>

// The save protocol. Every rank runs the same steps:
//
//  1. It takes a snapshot (snapshot.hpp), and writes and fsyncs its own files
//  (snapshot_writer.hpp):
//     shards and random states. Rank 0 also writes `.metadata`, scheduler, scaler and the program's
//     values. In the FULL form the ranks gather tensors and rank 0 writes them.
//  2. settle: one all_reduce tells every rank whether all have succeeded. After a failure rank 0
//     removes the temporary folder, and all ranks throw.
//  3. commit, by rank 0 alone, while the other ranks continue training: it checks that every
//     expected file is visible with its planned size, writes the manifest, and exchanges the folder
//     with the target (AtomicFolder). A failure here aborts the process groups, which is how the
//     other ranks learn of it.
//
// A crash before the exchange leaves the older checkpoint and a temporary folder, which the next
// save removes. A crash after it leaves the new checkpoint.
namespace acc::state_dict {

Part part_of(detail::ModelState& model, detail::OptimizerState& optimizer) {
  if (&optimizer.model() != &model) {
    throw Error(Errc::invalid_argument, "the optimizer belongs to another model");
  }
  model.finalize();
  return {&model, &optimizer};
}

void save(std::span<const Part> parts, const std::string& directory, const SavedState& state,
          std::uint32_t id, Existing existing) {
  if (parts.empty()) {
    throw Error(Errc::invalid_argument, "a checkpoint needs at least one model");
  }
  logger(Component::runtime).debug("saving to {}", directory);
  const auto& groups = parts.front().model->context().groups;
  const Snapshot snapshot = take_snapshot(parts, state);
  ProgressMeter meter(shows_progress(*parts.front().model), Component::runtime,
                      "saving " + directory, snapshot.nbytes);
  SnapshotWriter writer(snapshot, directory, id, existing, meter);
  try {
    const auto settle = [&](const Attempt& attempt) {
      attempt.settle(groups, "saving " + directory, [&writer] { writer.abandon(); });
    };
    Attempt attempt;
    writer.begin(attempt);
    if (is_object(directory)) {
      // They have no temporary names: the others must not write before rank 0 has looked.
      settle(attempt);
    }
    writer.write(attempt);
    settle(attempt);
  } catch (...) {
    writer.abandon();
    throw;
  }
  if (snapshot.rank == 0) {
    try {
      writer.commit();
    } catch (const std::exception& error) {
      writer.abandon();  // first, because the launcher may kill this rank once its peers know
      groups.abort(fmt::format("rank 0 could not complete {}: {}", directory, error.what()));
      throw;
    }
  }
}

}  // namespace acc::state_dict
