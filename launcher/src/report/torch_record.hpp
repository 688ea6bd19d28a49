// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/flight_record.hpp"
#include "report/record_files.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::report {

// torch.distributed has a flight recorder of its own, for the back ends gloo and nccl. In a worker
// that imports torch where the Python package acclaunch is installed, a thread of
// acclaunch/_flight.py waits at a FIFO next to the worker's flight record, and answers with a file:
// torch's records as JSON, which is quick, or with Python's stacks as torch pickles them; or where
// the threads of the program are.

enum class TorchForm { json, pickle, stacks };
inline TorchForm as_json(const RecordFiles& /*record*/) {
  return TorchForm::json;
}
/// Asks the workers with these records for torch's, in the form that `form` returns, and waits
/// until all that listen have answered, at most for `limit`. Blocks. A worker that hangs in a
/// collective answers; one that holds the lock of the Python interpreter does not.
void ask_for_torch_records(const std::vector<RecordFiles>& records, std::chrono::milliseconds limit,
                           TorchForm (*form)(const RecordFiles&) = as_json);
/// The two steps of it: sends a request (false if nobody listens), and tells if it is answered.
bool ask_for_torch_record(const RecordFiles& record, TorchForm form);
bool has_torch_record(const RecordFiles& record, TorchForm form);

/// Asks one worker where its Python threads are. Blocks, at most for `limit`. Returns nullopt if it
/// does not answer.
std::optional<std::string> python_stacks(const RecordFiles& record,
                                         std::chrono::milliseconds limit);

/// Decodes torch's records in JSON. `rank`: of the worker. Returns nullopt for other text. A
/// collective that has not ended counts as one that the rank waits in.
std::optional<flight::Record> torch_record(std::string_view json, int rank);
/// Returns the answer of a worker as torch has pickled it; "" if there is none.
std::string read_torch_pickle(const RecordFiles& record);

/// Reads the record of the runtime; nullopt if there is none.
std::optional<flight::Record> read_own_record(const RecordFiles& record);
/// Reads the worker's flight record, and if it has no collectives, torch's.
std::optional<flight::Record> read_any_record(const RecordFiles& record, int rank);

/// Removes the record and all files that belong to it.
void remove_records(const RecordFiles& record);

/// Returns a record as torch pickles its own (version 2.10), for torchfrtrace.
std::string torch_pickle(const flight::Record& record);

}  // namespace acc::launcher::report
