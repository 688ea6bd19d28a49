// SPDX-License-Identifier: Apache-2.0
#include "server/durable_state.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace acc::rendezvous {
namespace {

using JobChange = rounds::Jobs::Change;
using KeyChange = KeyTable::Change;

/// Returns the entry of a change. The numbers of both kinds of changes are those of the log.
template <typename Change>
Journal::Entry entry_of(Change change, std::string_view first, std::string_view second) {
  return {static_cast<std::uint8_t>(change), first, second};
}

template <typename Change>
bool is_between(std::uint8_t kind, Change first, Change last) {
  return kind >= static_cast<std::uint8_t>(first) && kind <= static_cast<std::uint8_t>(last);
}

}  // namespace

DurableState::DurableState(const ServerOptions& options, KeyTable::Release release)
    : options_(options),
      keys_(std::move(release), {options.max_keys, options.max_bytes}),
      jobs_(!options.state_dir.empty() || options.etcd),
      board_(options.board) {
  tell_board();
}

/// Lets new jobs tell the board what happens.
void DurableState::tell_board() {
  if (board_) {
    jobs_.tell_to([this](std::uint64_t job, const news::News& news) {
      board_->tell(job, news, std::chrono::system_clock::now(), is_recovering_);
    });
  }
}

void DurableState::recover(std::unique_ptr<JournalStorage> storage, const std::string& place,
                           std::function<void()> on_written, std::function<bool()> may_act) {
  is_recovering_ = true;
  const auto repeat_entry = [&](const Journal::Entry& entry) {
    try {
      repeat(entry);
    } catch (const Error& error) {
      throw Error(Errc::config,
                  fmt::format("cannot recover from the log in {}: {}", place, error.what()));
    }
  };
  journal_.emplace(std::move(storage), repeat_entry, std::move(on_written));
  shift_ = jobs_.last_event() - Clock::now();
  const auto record = [this](auto change, std::string_view first, std::string_view second) {
    return changes_.recorded = journal_->add(entry_of(change, first, second));
  };
  keys_.record_with(record);
  jobs_.record_with(record);
  jobs_.recover(now());
  is_recovering_ = false;
  changes_.may_act = std::move(may_act);
  share_memory();
}

void DurableState::repeat(const Journal::Entry& entry) {
  if (is_between(entry.kind, KeyChange::set, KeyChange::clear)) {
    keys_.repeat(static_cast<KeyChange>(entry.kind), entry.first, entry.second);
  } else if (is_between(entry.kind, JobChange::event, JobChange::draining)) {
    jobs_.repeat(static_cast<JobChange>(entry.kind), entry.first, entry.second);
  } else {
    throw Error(
        Errc::protocol,
        fmt::format("an entry has kind {}: it is the log of a newer acc-rendezvous", entry.kind));
  }
}

bool DurableState::commit() {
  if (!journal_) {
    return false;
  }
  if (journal_->is_long()) {
    journal_->rewrite([this](const Journal::Receive& add) { save(add); });
  } else {
    journal_->commit();
  }
  return std::exchange(changes_.written, journal_->num_written()) != journal_->num_written();
}

/// Passes the entries on that lead from nothing to the present state.
void DurableState::save(const Journal::Receive& add) const {
  const auto save_change = [&](auto change, std::string_view first, std::string_view second) {
    add(entry_of(change, first, second));
  };
  keys_.save(save_change);
  jobs_.save(save_change);
}

void DurableState::forget() {
  keys_.record_with({});
  keys_.clear();
  jobs_ = rounds::Jobs(true);
  if (board_) {
    board_->clear();
  }
  tell_board();
  journal_.reset();
  changes_ = {};
}

void DurableState::close() {
  keys_.record_with({});
  jobs_.record_with({});
  changes_.may_act = {};
  journal_.reset();
}

DurableState::Clock::time_point DurableState::next_deadline() const {
  const auto deadline = jobs_.next_deadline();
  return deadline == rounds::Time::max() ? deadline : deadline - shift_;
}

void DurableState::receive(rounds::AgentId agent, rounds::AgentMessage message,
                           rounds::Outbox& out) {
  share_memory();
  std::vector<RankStatus> ranks;
  std::string report;
  if (auto* const status = std::get_if<rounds::Status>(&message)) {
    ranks = std::move(status->ranks);
  } else if (auto* const failure = std::get_if<rounds::FailureReport>(&message)) {
    report = std::move(failure->json);
  }
  jobs_.receive(agent, std::move(message), now(), out);
  const auto job = jobs_.job_of(agent);
  if (job && board_ && !report.empty()) {
    board_->keep_report(*job, std::move(report), std::chrono::system_clock::now());
  } else if (job && board_) {
    board_->update(*job, agent, std::move(ranks), std::chrono::system_clock::now());
  }
}

/// The board may use a quarter of the memory.
void DurableState::share_memory() {
  const std::size_t all = options_.max_bytes;
  const auto left = [all](std::size_t used) { return all - std::min(used, all); };
  keys_.limit_bytes(left(jobs_.bytes() + watched_bytes()));
  jobs_.limit_bytes(left(keys_.bytes() + watched_bytes()));
  if (board_) {
    board_->limit_bytes(std::min(all / 4, left(bytes())));
  }
}

}  // namespace acc::rendezvous
