#pragma once

#include "acc/rendezvous/server.hpp"
#include "conversation.hpp"
#include "key_table.hpp"

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// One client of the server: moves bytes between its socket and its Conversation, which its first
/// byte chooses. Reads only while the client takes its replies.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Id = KeyTable::WaiterId;
  using Closed = std::function<void(Id)>;
  /// The language whose first byte this is; null where there is none.
  using Open = std::function<std::unique_ptr<Conversation>(Id, char first)>;

  /// `scratch` is where all connections of the one thread read into. `closed` is called once, and
  /// owns what the references point to.
  Connection(Socket socket, Id id, std::span<char> scratch, const ServerOptions& options, Open open,
             Closed closed);

  void start();
  /// Sends what is no answer to a request.
  void send(std::string_view bytes);
  /// The null pointer before the first byte.
  [[nodiscard]] const Conversation* conversation() const noexcept { return conversation_.get(); }
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
  Open open_;
  Socket socket_;
  boost::asio::steady_timer limit_;  // of the handshake, later of the last replies
  Id id_;
  std::unique_ptr<Conversation> conversation_;
  std::span<char> scratch_;
  const ServerOptions& options_;
  std::string peer_;
  std::string unsent_;
  std::string sending_;
  bool paused_ = false;     // serving waits until replies were taken
  bool finishing_ = false;  // no more reading
};

}  // namespace acc::rendezvous
