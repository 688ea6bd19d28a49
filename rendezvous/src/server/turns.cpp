// SPDX-License-Identifier: Apache-2.0
#include "server/turns.hpp"

namespace acc::rendezvous {

namespace asio = boost::asio;

namespace {

// Longest time for which a turn serves clients without returning to the event loop, which other
// users share (timers, signals, the launcher's work).
constexpr std::chrono::milliseconds kLongestTurn{5};

}  // namespace

Turns::Timer::Timer(Turns& turns, std::function<void()> due)
    : turns_(turns), due_(std::move(due)), timer_(turns.io_, Clock::time_point::max()) {
  turns_.timers_.push_back(this);
}

void Turns::Timer::at(Clock::time_point time) {
  if (time == timer_.expiry()) {
    return;
  }
  ++num_settings_;
  timer_.expires_at(time);
  if (!is_set()) {
    return;
  }
  timer_.async_wait([this, server = turns_.server_.lock(),
                     setting = num_settings_](const boost::system::error_code& /*cancelled*/) {
    if (setting == num_settings_) {
      cancel();
      due_();
      turns_.end();
    }
  });
}

void Turns::start(std::weak_ptr<void> server) {
  server_ = std::move(server);
  await_ready();
}

void Turns::close() {
  ready_.close();
  for (Timer* timer : timers_) {
    timer->cancel();
  }
}

void Turns::await_ready() {
  ready_.async_wait([this, server = server_.lock()](const boost::system::error_code& error) {
    if (!error) {
      serve();
    }
  });
}

void Turns::serve() {
  const auto end_of_turn = Clock::now() + kLongestTurn;
  serve_agents();
  // Under load the next batch is usually ready already. After a single client it is not, so
  // another epoll_wait would be wasted.
  while ((serve_batch() > 1 || !unfinished_.empty()) && Clock::now() < end_of_turn) {
  }
  if (unfinished_.empty()) {
    await_ready();
  } else {
    asio::post(io_, [this, server = server_.lock()] { serve(); });
  }
  end();
}

/// Handles the events that are ready now and gives each connection with unfinished requests a turn;
/// returns the number of events.
std::size_t Turns::serve_batch() {
  const auto batch = ready_.take();
  for (const epoll_event& event : batch) {
    if (ReadySet::Watcher* const watcher = ReadySet::watcher(event)) {
      watcher->ready(event.events);
      flush();
      spend(0);
    } else {
      serve_agents();
    }
  }
  for (std::size_t left = unfinished_.size(); left > 0; --left) {
    const Connection::Id id = unfinished_.front();
    unfinished_.pop_front();
    if (const auto found = open_.find(id); found != open_.end()) {
      found->second->resume();
      flush();
      spend(0);
    }
  }
  commit();
  return batch.size();
}

/// Serves agents that have sent something, and sends what is queued for agents.
void Turns::serve_agents() {
  for (const epoll_event& event : ready_.take_urgent()) {
    ReadySet::watcher(event)->ready(event.events);
    flush_agents();
  }
  flush_agents();
  cost_ = 0;
}

void Turns::spend(std::size_t cost) {
  count(cost);
  if (cost_ >= Connection::kTurnCost) {
    serve_agents();
  }
}

void Turns::read_all() {
  serve_agents();
  // The bound ends the loop if clients send faster than they are read.
  for (std::size_t seen = 0; seen <= open_.size();) {
    const std::size_t count = serve_batch();
    if (count == 0) {
      return;
    }
    seen += count;
  }
}

void Turns::flush_later(Connection& connection) {
  (connection.is_urgent() ? agents_to_flush_ : to_flush_).push_back(&connection);
}

void Turns::flush() {
  flush_agents();
  for (std::size_t i = 0; i < to_flush_.size(); ++i) {  // a flush may add further connections
    to_flush_[i]->flush();
    spend(kFlushCost);
  }
  to_flush_.clear();
  flush_agents();
}

void Turns::flush_agents() {
  for (std::size_t i = 0; i < agents_to_flush_.size(); ++i) {
    agents_to_flush_[i]->flush();
  }
  agents_to_flush_.clear();
}

void Turns::commit() {
  while (calls_.commit()) {
    for (const Connection::Id id : std::exchange(held_, {})) {
      if (const auto found = open_.find(id); found != open_.end()) {
        found->second->flush_held();
        spend(kFlushCost);
      }
    }
    flush();  // sending may close a connection, which changes its job
  }
}

void Turns::end() {
  flush();
  commit();
  closed_.clear();
  calls_.ended();
}

}  // namespace acc::rendezvous
