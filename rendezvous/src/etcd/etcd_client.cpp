// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd_client.hpp"

#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/security.hpp"
#include "secure/tls.hpp"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

// Limit of a reply: a page of the log has at most 256 values of 1 MiB.
constexpr std::uint64_t kMostReplyBytes = std::uint64_t{1} << 30;

// Codes of gRPC in error replies of a member that another member may not give.
constexpr int kCancelled = 1;
constexpr int kDeadlineExceeded = 4;
constexpr int kUnavailable = 14;

/// Bytes to and from one member, through TLS if there are files for it. A synchronous stream of
/// Beast, whose calls end at a common deadline and throw EtcdUnavailable.
class MemberStream {
 public:
  MemberStream(const EtcdAddress::Member& member, const std::optional<TlsFiles>& tls,
               std::chrono::milliseconds patience)
      : name_(fmt::format("{}:{}", member.host, member.port)), stream_(io_) {
    allow(patience);
    asio::ip::tcp::resolver resolver(io_);
    error_code error;
    const auto found = resolver.resolve(member.host, std::to_string(member.port), error);
    if (error) {
      throw unavailable(error.message());
    }
    complete([&](auto handler) {
      stream_.async_connect(found, [handler](error_code failed, const auto&) mutable {
        handler(failed, std::size_t{0});
      });
    });
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), error);
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
  void allow(std::chrono::milliseconds patience) { stream_.expires_after(patience); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// True if the last call failed because the member has closed the connection.
  [[nodiscard]] bool is_closed_by_member() const noexcept {
    return last_error_ == asio::error::eof || last_error_ == asio::error::connection_reset;
  }
  [[nodiscard]] EtcdUnavailable unavailable(const std::string& why, bool is_refused = false) const {
    return EtcdUnavailable(fmt::format("{}: {}", name_, why), is_refused);
  }

  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers) {
    if (!channel_) {
      return complete([&](auto handler) { stream_.async_read_some(buffers, handler); });
    }
    while (plain_.empty()) {
      if (channel_->is_finished()) {
        throw unavailable("it has ended the connection");
      }
      receive();
    }
    const std::size_t size = asio::buffer_copy(buffers, asio::buffer(plain_));
    plain_.erase(0, size);
    return size;
  }
  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers) {
    if (!channel_) {
      return complete([&](auto handler) { stream_.async_write_some(buffers, handler); });
    }
    const std::string bytes = beast::buffers_to_string(buffers);
    refusing([&] { channel_->send(bytes, outgoing_); });
    send();
    return bytes.size();
  }
  // The forms that Beast calls.
  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers, error_code& error) {
    error = {};
    return read_some(buffers);
  }
  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers, error_code& error) {
    error = {};
    return write_some(buffers);
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
      send();
      while (!channel_->is_established()) {
        receive();
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
  static char first_answer(const EtcdAddress::Member& member, const std::string& bytes,
                           std::chrono::milliseconds patience) {
    char first = 0;
    try {
      MemberStream stream(member, std::nullopt, patience);
      stream.write_some(asio::buffer(bytes));
      stream.read_some(asio::buffer(&first, 1));
    } catch (const EtcdUnavailable&) {
      return 0;
    }
    return first;
  }

  /// Receives bytes of TLS, and answers them.
  void receive() {
    std::array<char, std::size_t{16} << 10> bytes;
    const std::size_t size =
        complete([&](auto handler) { stream_.async_read_some(asio::buffer(bytes), handler); });
    refusing([&] { channel_->receive({bytes.data(), size}, plain_, outgoing_); });
    send();
  }

  /// Sends the bytes of TLS.
  void send() {
    if (outgoing_.empty()) {
      return;
    }
    const std::string bytes = std::exchange(outgoing_, {});
    try {
      complete([&](auto handler) { asio::async_write(stream_, asio::buffer(bytes), handler); });
    } catch (const EtcdUnavailable&) {
      receive();  // the member's alert has the reason for which it has closed the connection
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
      error_code ignored;
      stream_.socket().write_some(asio::buffer(outgoing_), ignored);
      throw refusal;
    }
  }

  template <typename Operation>
  std::size_t complete(Operation operation) {
    last_error_ = beast::error::timeout;
    std::size_t count = 0;
    operation([this, &count](error_code error, std::size_t done) {
      last_error_ = error;
      count = done;
    });
    io_.restart();
    io_.run();
    if (last_error_) {
      throw unavailable(last_error_.message());
    }
    return count;
  }

  std::string name_;
  asio::io_context io_;
  beast::tcp_stream stream_;
  error_code last_error_;
  std::unique_ptr<secure::TlsChannel> channel_;  // null: no TLS
  std::string plain_;                            // decrypted and not read yet
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

  std::pair<unsigned, std::string> post(const std::string& path, std::string body) {
    http::request<http::string_body> request(http::verb::post, path, 11);
    request.set(http::field::host, name());
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
    request.prepare_payload();
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMostReplyBytes);
    stream_.allow(patience_);
    error_code error;
    try {
      http::write(stream_, request, error);
      if (!error) {
        http::read(stream_, buffer_, parser, error);
      }
    } catch (const EtcdUnavailable&) {
      if (!has_tls_ && !has_answered_ && stream_.is_closed_by_member() &&
          MemberStream::requires_tls(member_, patience_)) {
        throw stream_.unavailable("it requires TLS: use etcds:// instead of etcd://", true);
      }
      throw;
    }
    if (error) {
      throw stream_.unavailable(error.message());
    }
    has_answered_ = true;
    return {parser.get().result_int(), std::move(parser.get().body())};
  }

  [[nodiscard]] const std::string& name() const noexcept { return stream_.name(); }

 private:
  EtcdAddress::Member member_;
  bool has_tls_;
  std::chrono::milliseconds patience_;
  MemberStream stream_;
  beast::flat_buffer buffer_;
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
