#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/static_rendezvous.hpp"
#include "gate.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <functional>
#include <optional>
#include <string>

namespace acc::launcher {

/// This machine's ties to the other machines of the job, through the store that machine 0 serves.
/// The loop's thread only.
class Peers {
 public:
  using Say = std::function<void(const std::string&)>;

  /// `say` hears what is being waited for, line by line.
  Peers(boost::asio::any_io_executor executor, const LaunchPlan& plan, std::string host, Say say);

  /// Completes when all machines are there. Throws Error(timeout) that names the missing ones, and
  /// Error(config) when two disagree.
  boost::asio::awaitable<void> join();

  /// From now on tells when the job has ended elsewhere, or when the tie to machine 0 is cut. Once.
  void watch(std::function<void(const rendezvous::JobEnd&)> on_end);

  /// Ends the job on all machines, unless one has done so already. In the background.
  void announce(int exit_status, const std::string& reason);

  /// To be called when all local workers have ended. Without a failure it waits until the other
  /// machines are through as well. Returns the end that counts, if the job did not succeed.
  boost::asio::awaitable<std::optional<rendezvous::JobEnd>> finish();

  /// How a machine is called in messages: "machine 1 (node2)".
  [[nodiscard]] std::string name_of(int machine_rank) const;

 private:
  boost::asio::awaitable<void> linger();
  boost::asio::awaitable<void> await_end(std::function<void(const rendezvous::JobEnd&)> on_end);
  boost::asio::awaitable<void> send_end(rendezvous::JobEnd end);
  rendezvous::JobEnd lost_machine_0(const std::string& why) const;

  boost::asio::any_io_executor executor_;
  const LaunchPlan& plan_;
  std::string host_;
  Say say_;
  std::vector<rendezvous::Machine> machines_;
  rendezvous::AsyncClient calls_;
  rendezvous::AsyncClient watcher_;
  bool announcing_ = false;
  bool finishing_ = false;
  Gate announced_;
  std::optional<rendezvous::JobEnd> end_;  ///< the one that counts, once known
};

}  // namespace acc::launcher
