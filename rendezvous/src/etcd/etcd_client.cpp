// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd_client.hpp"

#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/security.hpp"
#include "net/socket_stream.hpp"
#include "secure/tls.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <utility>

namespace acc::rendezvous {

namespace http = boost::beast::http;

namespace {

// Limit of a reply: a page of the log has at most 256 values of 1 MiB.
constexpr std::uint64_t kMostReplyBytes = std::uint64_t{1} << 30;

// Codes of gRPC in error replies of a member that another member may not give.
constexpr int kCancelled = 1;
constexpr int kDeadlineExceeded = 4;
constexpr int kUnavailable = 14;

/// Bytes to and from one member, through TLS if there are files for it. Calls end at a common
/// deadline and throw EtcdUnavailable.
class MemberStream {
 public:
  MemberStream(const EtcdAddress::Member& member, const std::optional<TlsFiles>& tls,
               std::chrono::milliseconds patience)
      : name_(fmt::format("{}:{}", member.host, member.port)) {
    allow(patience);
    on_socket([&] { stream_.connect(member.host, member.port, deadline_); });
    if (tls) {
      start_tls(member, *tls, patience);
    }
  }

  /// True if a member answers the first message of TLS as a server with TLS does.
  static bool requires_tls(const EtcdAddress::Member& member, std::chrono::milliseconds patience) {
    constexpr char kTlsAlert = 0x15;
    std::string hello;
    secure::TlsChannel::client(*make_etcd_tls({}), member.host)->start(hello);
    const char first = first_answer(member, hello, patience);
    return first == secure::kTlsHandshake || first == kTlsAlert;
  }

  /// Sets the deadline of the following calls.
  void allow(std::chrono::milliseconds patience) {
    deadline_ = std::chrono::steady_clock::now() + patience;
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// True if the member has closed the connection.
  [[nodiscard]] bool is_closed_by_member() const noexcept { return is_closed_by_member_; }
  [[nodiscard]] EtcdUnavailable unavailable(const std::string& why, bool is_refused = false) const {
    return EtcdUnavailable(fmt::format("{}: {}", name_, why), is_refused);
  }

  /// Receives at least one byte, and appends it to `bytes`.
  void read(std::string& bytes) {
    if (!channel_) {
      receive(bytes);
      return;
    }
    const std::size_t before = bytes.size();
    while (bytes.size() == before) {
      if (channel_->is_finished()) {
        is_closed_by_member_ = true;
        throw unavailable("it has ended the connection");
      }
      receive_tls(bytes);
    }
  }
  void write(std::string_view bytes) {
    if (channel_) {
      refusing([&] { channel_->send(bytes, outgoing_); });
      send_tls();
    } else {
      on_socket([&] { stream_.write(bytes, deadline_); });
    }
  }

 private:
  void start_tls(const EtcdAddress::Member& member, const TlsFiles& files,
                 std::chrono::milliseconds patience) {
    std::shared_ptr<TlsContext> context;
    refusing([&] {
      context = make_etcd_tls(files);
      channel_ = secure::TlsChannel::client(*context, member.host);
      channel_->start(outgoing_);
    });
    try {
      send_tls();
      std::string none;  // no bytes of the program come before the handshake is complete
      while (!channel_->is_established()) {
        receive_tls(none);
      }
    } catch (const EtcdUnavailable&) {
      // An etcd without TLS does not answer with an alert.
      if (is_closed_by_member() &&
          first_answer(member, "GET /version HTTP/1.0\r\n\r\n", patience) == 'H') {
        throw unavailable(std::string(context->messages().no_tls), true);
      }
      throw;
    }
  }

  /// Returns the first byte that a member answers on a connection without TLS; 0: none.
  static char first_answer(const EtcdAddress::Member& member, std::string_view bytes,
                           std::chrono::milliseconds patience) {
    try {
      MemberStream stream(member, std::nullopt, patience);
      stream.write(bytes);
      std::string answer;
      stream.read(answer);
      return answer.front();
    } catch (const EtcdUnavailable&) {
      return 0;
    }
  }

  /// Appends what the socket receives to `bytes`.
  void receive(std::string& bytes) {
    std::array<char, std::size_t{16} << 10> part;
    std::size_t count = 0;
    on_socket([&] { count = stream_.read_some(part.data(), part.size(), deadline_); });
    if (count == 0) {
      is_closed_by_member_ = true;
      throw unavailable("it has closed the connection");
    }
    bytes.append(part.data(), count);
  }

  /// Receives bytes of TLS, and answers them.
  void receive_tls(std::string& plain) {
    std::string bytes;
    receive(bytes);
    refusing([&] { channel_->receive(bytes, plain, outgoing_); });
    send_tls();
  }

  /// Sends the bytes of TLS.
  void send_tls() {
    const std::string bytes = std::exchange(outgoing_, {});
    try {
      on_socket([&] { stream_.write(bytes, deadline_); });
    } catch (const EtcdUnavailable&) {
      std::string none;
      receive_tls(
          none);  // the member's alert has the reason for which it has closed the connection
      throw;
    }
  }

  /// Calls a function of TLS. Its error is a refusal, about which the member is told.
  template <typename Call>
  void refusing(Call call) {
    try {
      call();
    } catch (const Error& error) {
      const EtcdUnavailable refusal = unavailable(error.what(), true);
      try {
        stream_.write(outgoing_, deadline_);
      } catch (const Error&) {  // the refusal says more
      }
      throw refusal;
    }
  }

  /// Calls a function of the socket.
  template <typename Call>
  void on_socket(Call call) {
    try {
      call();
    } catch (const Error& error) {
      is_closed_by_member_ = error.code() == Errc::connection;
      throw unavailable(error.what());
    }
  }

  std::string name_;
  StoppablePoll poll_{std::stop_token()};
  SocketStream stream_{poll_};
  SocketStream::TimePoint deadline_;
  bool is_closed_by_member_ = false;
  std::unique_ptr<secure::TlsChannel> channel_;  // null: no TLS
  std::string outgoing_;                         // encrypted and not sent yet
};

}  // namespace

/// A connection to one member. After a failure it is unusable.
class EtcdClient::Connection {
 public:
  Connection(EtcdAddress::Member member, const std::optional<TlsFiles>& tls,
             std::chrono::milliseconds patience)
      : member_(std::move(member)),
        has_tls_(tls.has_value()),
        patience_(patience),
        stream_(member_, tls, patience) {}

  std::pair<unsigned, std::string> post(const std::string& path, const std::string& body) {
    stream_.allow(patience_);
    Reply reply;
    reply.body_limit(kMostReplyBytes);
    reply.eager(true);
    try {
      stream_.write(
          fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
                      "Content-Length: {}\r\n\r\n{}",
                      path, name(), body.size(), body));
      while (!reply.is_done()) {
        receive(reply);
      }
    } catch (const EtcdUnavailable&) {
      if (!has_tls_ && !has_answered_ && stream_.is_closed_by_member() &&
          MemberStream::requires_tls(member_, patience_)) {
        throw stream_.unavailable("it requires TLS: use etcds:// instead of etcd://", true);
      }
      throw;
    }
    has_answered_ = true;
    return {reply.get().result_int(), std::move(reply.get().body())};
  }

  [[nodiscard]] const std::string& name() const noexcept { return stream_.name(); }

 private:
  using Reply = http::response_parser<http::string_body>;

  /// Receives bytes, gives them to the parser, and keeps what it does not take.
  void receive(Reply& reply) {
    boost::system::error_code error;
    try {
      stream_.read(received_);
    } catch (const EtcdUnavailable&) {
      if (!stream_.is_closed_by_member() || !reply.got_some()) {
        throw;
      }
      reply.put_eof(error);  // the end of a reply without a length
      if (error) {
        throw;
      }
      return;
    }
    std::size_t taken = 0;
    while (taken < received_.size() && !reply.is_done() && !error) {
      taken +=
          reply.put(boost::asio::buffer(received_.data() + taken, received_.size() - taken), error);
    }
    received_.erase(0, taken);
    if (error && error != http::error::need_more) {
      throw stream_.unavailable(error.message());
    }
  }

  EtcdAddress::Member member_;
  bool has_tls_;
  std::chrono::milliseconds patience_;
  MemberStream stream_;
  std::string received_;  // and not parsed yet
  bool has_answered_ = false;
};

EtcdClient::EtcdClient(const EtcdAddress& address, std::chrono::milliseconds patience)
    : address_(address), patience_(patience) {}

EtcdClient::~EtcdClient() = default;

EtcdClient::Json EtcdClient::post(const std::string& path, const Json& request) {
  const std::string body = text_of_json(request);
  std::string failures;
  bool is_refused = false;
  // One more attempt than members: a member may have closed an idle connection.
  for (std::size_t attempt = 0; attempt <= address_.members.size(); ++attempt) {
    try {
      if (!connection_) {
        connection_ =
            std::make_unique<Connection>(address_.members[member_], address_.tls, patience_);
      }
      const auto [status, text] = connection_->post(path, body);
      const Json reply = json_from_text<Json>(text, nullptr, false);
      if (status == 200 && reply.is_object()) {
        return reply;
      }
      const std::string message =
          reply.is_object() ? reply.value("message", reply.value("error", "")) : "";
      const int code = reply.is_object() ? reply.value("code", 0) : kUnavailable;
      const std::string what = fmt::format("{}: {} (HTTP status {})", connection_->name(),
                                           printable(message.empty() ? text : message), status);
      if (code != kUnavailable && code != kDeadlineExceeded && code != kCancelled &&
          message.find("too many requests") == std::string::npos) {
        throw Error(Errc::process, "etcd refuses a request to " + path + ": " + what);
      }
      throw EtcdUnavailable(what);
    } catch (const EtcdUnavailable& error) {
      const bool may_be_stale = attempt == 0 && connection_ != nullptr;
      failures += (failures.empty() ? "" : "; ") + std::string(error.what());
      is_refused = is_refused || error.is_refused;
      connection_.reset();
      member_ = may_be_stale ? member_ : (member_ + 1) % address_.members.size();
    }
  }
  throw EtcdUnavailable("no member of etcd answers: " + failures, is_refused);
}

std::int64_t etcd_number(const nlohmann::json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) {
    return 0;
  }
  return found->is_string() ? parse_integer(found->get<std::string>()).value_or(0)
                            : found->get<std::int64_t>();
}

}  // namespace acc::rendezvous
