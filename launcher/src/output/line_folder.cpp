#include "output/line_folder.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher {

void LineFolder::add(int rank, std::string_view text, Time now) {
  std::set<std::size_t>& same = by_text_[std::string(text)];
  auto joined = same.lower_bound(next_[rank]);
  if (joined == same.end()) {
    joined = same.insert(first_ + pending_.size()).first;
    pending_.push_back({{{}, std::string(text)}, now + kWindow});
    bytes_ += text.size();
  }
  pending_[*joined - first_].line.ranks.insert(rank);
  next_[rank] = *joined + 1;
}

std::optional<LineFolder::Line> LineFolder::take(Time now) {
  if (pending_.empty() || !is_ready(pending_.front(), now)) {
    return std::nullopt;
  }
  Line line = std::move(pending_.front().line);
  pending_.pop_front();
  bytes_ -= line.text.size();
  const auto same = by_text_.find(line.text);
  same->second.erase(first_++);
  if (same->second.empty()) {
    by_text_.erase(same);
  }
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
