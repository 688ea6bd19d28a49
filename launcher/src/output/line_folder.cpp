#include "output/line_folder.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace acc::launcher {

void LineFolder::add(int rank, std::string_view text, Time now) {
  const auto same = find_same(rank, text);
  if (same == pending_.end()) {
    pending_.push_back({{{rank}, std::string(text)}, now + kWindow});
    bytes_ += text.size();
    return;
  }
  move_lines_of(rank, same);
  same->line.ranks.insert(rank);
}

/// The earliest line that `rank` may join. It keeps its order with the lines that it shares with
/// others; those that it alone has written can be moved.
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

void LineFolder::move_lines_of(int rank, Lines::iterator same) {
  for (auto line = std::next(same); line != pending_.end();) {
    const auto current = line++;
    if (current->line.ranks.contains(rank)) {
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

}  // namespace acc::launcher
