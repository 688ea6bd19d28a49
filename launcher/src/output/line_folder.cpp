// SPDX-License-Identifier: Apache-2.0
#include "output/line_folder.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace acc::launcher::output {
namespace {

std::size_t hash_of(std::string_view text) {
  return std::hash<std::string_view>()(text);
}

}  // namespace

void LineFolder::add(int rank, std::string_view text, Time now) {
  const auto same = hashes_.contains(hash_of(text)) ? find_same(rank, text) : pending_.end();
  if (same == pending_.end()) {
    pending_.push_back({{{rank}, std::string(text)}, now + kWindow});
    hashes_.insert(hash_of(text));
    bytes_ += text.size();
    return;
  }
  move_lines_of(rank, same);
  same->line.ranks.insert(rank);
}

/// Returns the earliest pending line with this text that `rank` may join. The search stops at a
/// line that `rank` shares with other ranks, since it cannot be moved; lines that only `rank` has
/// written can be moved before the joined line (`move_lines_of`).
LineFolder::Lines::iterator LineFolder::find_same(int rank, std::string_view text) {
  auto same = pending_.end();
  for (auto line = pending_.end(); line != pending_.begin();) {
    --line;
    const bool is_its_own = line->line.ranks.contains(rank);
    if (is_its_own && line->line.ranks.size() > 1) {
      break;
    }
    if (!is_its_own && line->line.text == text) {
      same = line;
    }
  }
  return same;
}

/// Moves the lines that `rank` wrote before its new line, but that are pending behind `same`, to
/// the position before `same`, so that the lines of `rank` keep their order.
void LineFolder::move_lines_of(int rank, Lines::iterator same) {
  for (auto line = std::next(same); line != pending_.end();) {
    const auto current = line++;
    if (current->line.ranks.contains(rank)) {
      // This line is now before `same`, and must not delay it.
      current->due = std::min(current->due, same->due);
      pending_.splice(same, pending_, current);
    }
  }
}

std::optional<LineFolder::Line> LineFolder::take(Time now) {
  if (pending_.empty() || !is_ready(pending_.front(), now)) {
    return std::nullopt;
  }
  Line line = std::move(pending_.front().line);
  pending_.pop_front();
  hashes_.erase(hashes_.find(hash_of(line.text)));
  bytes_ -= line.text.size();
  return line;
}

std::optional<LineFolder::Time> LineFolder::due() const {
  return pending_.empty() ? std::nullopt : std::optional(pending_.front().due);
}

bool LineFolder::is_ready(const Pending& pending, Time now) const {
  return pending_.size() > kMaxLines || bytes_ > kMaxBytes || now >= pending.due ||
         (pending.line.ranks.size() >= running_.size() &&
          std::ranges::includes(pending.line.ranks, running_));
}

}  // namespace acc::launcher::output
