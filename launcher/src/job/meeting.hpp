#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/meeting.hpp"
#include "acc/rendezvous/server.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// How this machine comes to know the others of its job, its own rank and the workers' store, which
/// machine 0 serves. The loop's thread only.
class Meeting {
 public:
  using Say = std::function<void(const std::string&)>;

  /// `say` hears what is being waited for, line by line.
  Meeting(boost::asio::io_context& io, const LaunchPlan& plan, std::string host, Say say);

  /// Completes when all machines are there and the store is served. Throws Error(config) for a port
  /// that cannot be had and for machines that disagree, Error(timeout) that names the missing ones.
  boost::asio::awaitable<void> take_place();

  /// To be called when this launcher has to end while the meeting takes place: gives its place
  /// there back, as far as that is quickly done. False where the job has already formed with it.
  boost::asio::awaitable<bool> leave();

  // What came of it.
  [[nodiscard]] const std::vector<rendezvous::Machine>& machines() const { return machines_; }
  [[nodiscard]] int machine_rank() const { return machine_rank_; }
  [[nodiscard]] const rendezvous::StoreAddress& store() const { return store_; }
  /// Who the workers of this machine are, in the attempt after so many restarts.
  [[nodiscard]] Assignment assignment(int restart_count) const;

  /// Machine 0: tells from now on when another one is gone.
  void on_machine_gone(std::function<void(int machine_rank)> callback);

  /// Machine 0: nobody waits for a report of one that is gone.
  void report_nothing(int attempt, int machine_rank);

  /// Machine 0: makes the store as good as new for the next attempt.
  void forget_workers();

  /// Serves no more. `gently` lets the other machines take their last answers.
  void close(bool gently);

 private:
  void serve_store();
  boost::asio::awaitable<void> meet_by_rank();
  boost::asio::awaitable<void> meet_by_arrival();
  boost::asio::awaitable<bool> is_own_address(std::string host);
  bool serve_meeting();
  boost::asio::awaitable<void> agree_on_store();
  [[nodiscard]] rendezvous::Machine this_machine() const;
  [[nodiscard]] rendezvous::Terms terms() const;
  [[nodiscard]] rendezvous::MeetingTimes times() const;
  boost::asio::awaitable<void> connect(const std::string& server);
  boost::asio::awaitable<void> connect_to_meeting();
  boost::asio::awaitable<std::string> connect_to_neighbour();
  boost::asio::awaitable<void> linger();

  boost::asio::io_context& io_;
  const LaunchPlan& plan_;
  std::string host_;
  Say say_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<rendezvous::Server> store_server_;
  std::optional<rendezvous::Server> meeting_server_;  ///< Backend::c10d, on one of the machines
  rendezvous::AsyncClient client_;
  std::vector<rendezvous::Machine> machines_;
  int machine_rank_;
  rendezvous::StoreAddress store_;
};

}  // namespace acc::launcher
