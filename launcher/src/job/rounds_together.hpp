#pragma once

#include "acc/rendezvous/agent.hpp"
#include "acc/rendezvous/gate.hpp"
#include "acc/rendezvous/host_addresses.hpp"
#include "acc/rendezvous/listener.hpp"
#include "acc/rendezvous/server.hpp"
#include "job/rounds.hpp"

#include <boost/asio/steady_timer.hpp>

#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// Several machines. Where they meet, and where the workers' store is:
///
/// static: machine 0 serves both at the address, which has to be its own or to lead there.
/// c10d: whoever answers at the address forms the rounds: a daemon, or the machine whose address it
/// is. Each machine has a store ready at a port of its own, another one for each round, so that no
/// worker of a dead round finds the next one's.
///
/// All of them listen where the others are told to find them, and nowhere else, unless it is not
/// known which interface that is.
class RoundsTogether : public Rounds {
 public:
  RoundsTogether(boost::asio::io_context& io, const LaunchPlan& plan, std::string host,
                 Events events);

  boost::asio::awaitable<std::optional<rendezvous::Round>> next() override;
  void end(rendezvous::AttemptEnd end) override { agent_.end(std::move(end)); }
  boost::asio::awaitable<void> end_is_known() override { return agent_.end_is_known(); }
  [[nodiscard]] const std::optional<rendezvous::AttemptEnd>& known_end() const override {
    return agent_.known_end();
  }
  void insist() override { agent_.insist(); }
  boost::asio::awaitable<rendezvous::Settlement> settle(bool failed, std::string report) override {
    return agent_.settle(failed, std::move(report));
  }
  void hurry() override { agent_.hurry(); }
  boost::asio::awaitable<void> leave() override { return agent_.leave(); }
  boost::asio::awaitable<void> part() override;
  void close() override;
  [[nodiscard]] std::size_t num_clients(const rendezvous::Round& round) const override;

 private:
  [[nodiscard]] bool ranks_are_given() const;
  void renew_store();
  std::uint16_t serve_store_at(const std::string& address);
  std::vector<rendezvous::Listener> listen(const std::vector<std::string>& hosts,
                                           std::uint16_t port);
  boost::asio::awaitable<void> look_up_addresses();
  void warn_of_another_machine(const rendezvous::HostAddresses& found) const;
  [[nodiscard]] bool is_to_serve() const;
  [[nodiscard]] std::string own_server() const;
  boost::asio::awaitable<std::optional<rendezvous::Round>> join();
  boost::asio::awaitable<void> look_for_another_machine_0();
  boost::asio::awaitable<void> ask(std::string host);
  bool serves_if_nobody_does();
  bool may_come_back();
  [[nodiscard]] rendezvous::Machine this_machine() const;

  boost::asio::io_context& io_;
  const LaunchPlan& plan_;
  std::string host_;
  std::string secret_;                            ///< of the workers, where this is machine 0
  std::optional<rendezvous::Server> rendezvous_;  ///< static: with the workers' store
  std::optional<rendezvous::Server> store_;       ///< c10d
  rendezvous::Agent agent_;
  std::function<void(const std::string&)> say_;
  std::string address_;                    ///< where all machines look for the rendezvous
  std::vector<std::string> server_hosts_;  ///< where this machine listens at that address
  std::vector<std::string> local_hosts_;   ///< the same for --local-addr, if it was given
  std::vector<std::string> store_hosts_;   ///< c10d: where the workers' stores listen
  bool is_own_address_ = false;            ///< of this machine, as far as can be seen from here
  bool has_warned_ = false;                ///< that it listens on all interfaces
  bool should_serve_ = false;  ///< the rendezvous is, or would be, on this machine
  bool has_joined_ = false;
  bool is_joining_ = false;
  std::optional<rendezvous::Agent> asker_;  ///< static, machine 0: whether there is another one
  boost::asio::steady_timer pause_;         ///< until it asks again
  std::exception_ptr refusal_;              ///< by the answer
  std::optional<std::chrono::steady_clock::time_point> server_gone_since_;  ///< by the attempts
};

}  // namespace acc::launcher
