#pragma once

#include "acc/rendezvous/server.hpp"
#include "session.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace acc::rendezvous {

/// One client of the server: moves bytes between its socket and its Session. Reads only while the
/// client takes its replies.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Closed = std::function<void(KeyTable::WaiterId)>;

  /// `scratch` is where all connections of the one thread read into. `closed` is called once, and
  /// owns what the references point to.
  Connection(Socket socket, KeyTable& table, KeyTable::WaiterId id, std::span<char> scratch,
             const ServerOptions& options, Closed closed);

  void start();
  /// Sends the release byte of a pending WAIT or BARRIER.
  void release();
  [[nodiscard]] bool is_launcher() const noexcept { return session_.is_launcher(); }
  [[nodiscard]] std::optional<int> tied_machine() const noexcept { return session_.tied_machine(); }
  /// Takes no more requests; closes when all replies are sent.
  void finish();
  void close();

 private:
  void read();
  void receive();
  void serve();
  void write();
  void written(const boost::system::error_code& error);
  void close_after(std::chrono::milliseconds limit);

  Closed closed_;  // destroyed last
  Socket socket_;
  boost::asio::steady_timer limit_;  // of the handshake, later of the last replies
  Session session_;
  KeyTable::WaiterId id_;
  std::span<char> scratch_;
  const ServerOptions& options_;
  std::string peer_;
  std::string unsent_;
  std::string sending_;
  bool paused_ = false;     // serving waits until replies were taken
  bool finishing_ = false;  // no more reading
};

}  // namespace acc::rendezvous
