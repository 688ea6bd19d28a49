// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/board.hpp"

#include <functional>
#include <string>
#include <string_view>

namespace acc::rendezvous::watch {

/// A text in parts of about kPartBytes, so that a server can do something else in between: appends
/// the next part, which may be empty, to `out`; returns false after the last one. Throws
/// Error(protocol) if what the text shows has been replaced meanwhile.
using Parts = std::function<bool(std::string& out)>;
inline constexpr std::size_t kPartBytes = std::size_t{64} * 1024;
/// Returns all parts.
std::string whole(const Parts& parts);
/// Returns a job at each call; null: it is gone.
using FindJob = std::function<const Board::Job*()>;

/// The answers of docs/api.schema.json as JSON texts. Numbers that are not finite are null. `board`
/// must outlive the parts.
Parts jobs_json(const Board& board, Board::Time now);
std::string job_json(const Board::Job& job);
/// The ranks from `from` on, at most `limit`. The job exists.
Parts ranks_json(FindJob find, std::size_t from, std::size_t limit);
Parts rounds_json(FindJob find);
/// The events of a job; of all jobs if it is null.
std::string events_json(const Board& board, const Board::Job* job);
std::string history_json(const Board::Job& job);
std::string event_json(const Board::Event& event);
std::string error_json(unsigned status, std::string_view message);

/// Returns the kept events of a job, or of all jobs, with greater numbers than `after`; oldest
/// first.
std::vector<const Board::Event*> events_after(const Board& board, const Board::Job* job,
                                              std::uint64_t after);

}  // namespace acc::rendezvous::watch
