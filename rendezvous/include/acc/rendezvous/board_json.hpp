// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/board.hpp"

#include <string>
#include <string_view>

namespace acc::rendezvous::watch {

/// The answers of docs/api.schema.json as JSON texts. Numbers that are not finite are null.
std::string jobs_json(const Board& board, Board::Time now);
std::string job_json(const Board::Job& job);
/// The ranks from `from` on, at most `limit`.
std::string ranks_json(const Board::Job& job, std::size_t from, std::size_t limit);
std::string rounds_json(const Board::Job& job);
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
