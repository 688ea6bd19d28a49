#pragma once

#include "acc/base/unique_fd.hpp"
#include "acc/rendezvous/server.hpp"
#include "conversation.hpp"
#include "key_table.hpp"
#include "ready_set.hpp"
#include "seldom.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// One client of the server: moves bytes between its socket and its Conversation, which its first
/// byte chooses. Reads only while the client takes its replies, one buffer full in each turn, and
/// owns no memory for bytes unless a request is incomplete or a reply unread.
class Connection final : public ReadySet::Watcher {
 public:
  using Id = KeyTable::WaiterId;

  /// The server, as its connections see it.
  class Owner {
   public:
    /// The language whose first byte this is; null where there is none.
    virtual std::unique_ptr<Conversation> open(Id id, char first) = 0;
    /// `flush` it before the turn ends.
    virtual void touched(Connection& connection) = 0;
    /// It has said its last: `close` it if the client does not do so in time.
    virtual void leaving(Id id) = 0;
    /// All clients together have more than ServerOptions::max_buffered_bytes: `give_up` one.
    virtual void overfull() = 0;
    /// The last call. The connection must live on to the end of the turn.
    virtual void closed(Id id) = 0;

   protected:
    ~Owner() = default;
  };

  /// What all connections of a server use in turn, or count together.
  struct Commons {
    Commons(boost::asio::io_context& io, const ServerOptions& chosen)
        : ready(io), options(chosen) {}

    ReadySet ready;
    ServerOptions options;
    std::array<char, 64 * 1024> received{};
    std::string replies;       // lent to the one that is served
    std::size_t buffered = 0;  // see ServerOptions::max_buffered_bytes
    Seldom refusals;
  };

  enum class Farewell : std::uint8_t {
    brief,   ///< closes when the last byte is sent
    patient  ///< then waits for the client to close, so that nothing sent is lost on the way
  };

  /// Begins to read. `owner` and `commons` must outlive it. Throws Error(connection).
  Connection(UniqueFd socket, Id id, Commons& commons, Owner& owner);
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void ready(std::uint32_t events) override;

  /// Sends, in this turn, what is no answer to a request.
  void send(std::string_view bytes);
  /// The client has shown that it knows a language.
  [[nodiscard]] bool is_open() const noexcept { return conversation_ && conversation_->is_open(); }
  /// Takes no more requests; closes when all replies are sent.
  void finish(Farewell farewell);
  /// Tries to send what `send` left, and to end what `finish` began.
  void flush();
  void close();
  /// What of Commons::buffered is its.
  [[nodiscard]] std::size_t num_buffered() const noexcept { return counted_; }
  /// Closes it, for it has more buffered than any other.
  void give_up();

 private:
  void advance(std::uint32_t events);
  void receive();
  void take(std::string_view bytes);
  void serve(std::string_view bytes);
  void step_through(std::string_view& bytes);
  void keep(std::string_view rest);
  void give_back();
  void write();
  void depart();
  void watch();
  void refuse(const std::string& why, bool is_limit);
  void tell(const std::string& why, bool is_limit);
  void count_buffered();
  [[nodiscard]] std::size_t num_unsent() const noexcept { return unsent_.size() - num_sent_; }

  // What serving a request looks at comes first, together.
  UniqueFd socket_;
  std::uint32_t interest_ = EPOLLIN;
  bool is_touched_ = false;
  bool is_lent_ = false;  // unsent_ is Commons::replies
  bool is_serving_ = false;
  bool is_paused_ = false;     // until replies were taken
  bool is_finishing_ = false;  // no more requests
  bool is_departing_ = false;  // all is sent, and the client has been told
  bool is_broken_ = false;     // to be closed
  Farewell farewell_ = Farewell::brief;
  Id id_;
  Commons& commons_;
  Owner& owner_;
  std::unique_ptr<Conversation> conversation_;
  std::string rest_;  // the beginning of a request; of several while paused
  std::string unsent_;
  std::size_t num_sent_ = 0;  // of unsent_
  std::size_t counted_ = 0;   // in Commons::buffered
};

}  // namespace acc::rendezvous
