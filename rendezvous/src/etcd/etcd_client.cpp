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

}  // namespace

/// A connection to one member, through TLS if there are files for it. A request and its reply end
/// at a common deadline and throw EtcdUnavailable. After a failure the connection is unusable.
class EtcdClient::Connection {
 public:
  Connection(EtcdAddress::Member member, const std::optional<TlsFiles>& tls,
             std::chrono::milliseconds patience)
      : member_(std::move(member)),
        name_(fmt::format("{}:{}", member_.host, member_.port)),
        patience_(patience),
        deadline_(std::chrono::steady_clock::now() + patience) {
    on_socket([&] { stream_.connect(member_.host, member_.port, deadline_); });
    if (tls) {
      start_tls(*tls);
    }
  }

  std::pair<unsigned, std::string> post(const std::string& path, const std::string& body) {
    deadline_ = std::chrono::steady_clock::now() + patience_;
    Reply reply;
    reply.body_limit(kMostReplyBytes);
    reply.eager(true);
    try {
      write(
          fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
                      "Content-Length: {}\r\n\r\n{}",
                      path, name_, body.size(), body));
      while (!reply.is_done()) {
        receive(reply);
      }
    } catch (const EtcdUnavailable&) {
      if (!channel_ && !has_answered_ && is_closed_by_member_ && requires_tls()) {
        throw unavailable("it requires TLS: use etcds:// instead of etcd://", true);
      }
      throw;
    }
    has_answered_ = true;
    return {reply.get().result_int(), std::move(reply.get().body())};
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  using Reply = http::response_parser<http::string_body>;

  [[nodiscard]] EtcdUnavailable unavailable(const std::string& why, bool is_refused = false) const {
    return EtcdUnavailable(fmt::format("{}: {}", name_, why), is_refused);
  }

  /// Receives bytes, gives them to the parser, and keeps what it does not take.
  void receive(Reply& reply) {
    boost::system::error_code error;
    try {
      read(received_);
    } catch (const EtcdUnavailable&) {
      if (!is_closed_by_member_ || !reply.got_some()) {
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
      throw unavailable(error.message());
    }
  }

  /// Receives at least one byte, and appends it to `bytes`.
  void read(std::string& bytes) {
    if (!channel_) {
      return receive_raw(bytes);
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

  void start_tls(const TlsFiles& files) {
    std::shared_ptr<TlsContext> context;
    refusing([&] {
      context = make_etcd_tls(files);
      channel_ = secure::TlsChannel::client(*context, member_.host);
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
      if (is_closed_by_member_ && first_answer("GET /version HTTP/1.0\r\n\r\n") == 'H') {
        throw unavailable(std::string(context->messages.no_tls), true);
      }
      throw;
    }
  }

  /// True if the member answers the first message of TLS as a server with TLS does.
  [[nodiscard]] bool requires_tls() const {
    constexpr char kTlsAlert = 0x15;
    std::string hello;
    secure::TlsChannel::client(*make_etcd_tls({}), member_.host)->start(hello);
    const char first = first_answer(hello);
    return first == secure::kTlsHandshake || first == kTlsAlert;
  }

  /// Returns the first byte that the member answers on a connection without TLS; 0: none.
  [[nodiscard]] char first_answer(std::string_view bytes) const {
    try {
      Connection plain(member_, std::nullopt, patience_);
      plain.write(bytes);
      std::string answer;
      plain.read(answer);
      return answer.front();
    } catch (const EtcdUnavailable&) {
      return 0;
    }
  }

  /// Appends what the socket receives to `bytes`.
  void receive_raw(std::string& bytes) {
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
    receive_raw(bytes);
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

  EtcdAddress::Member member_;
  std::string name_;
  std::chrono::milliseconds patience_;
  StoppablePoll poll_{std::stop_token()};
  SocketStream stream_{poll_};
  SocketStream::TimePoint deadline_;
  bool is_closed_by_member_ = false;
  std::unique_ptr<secure::TlsChannel> channel_;  // null: no TLS
  std::string outgoing_;                         // encrypted and not sent yet
  std::string received_;                         // and not parsed yet
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
