// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd_client.hpp"

#include "acc/base/text.hpp"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/detail/base64.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

}  // namespace

/// A connection to one member. Every call has a time limit; after a failure it is unusable.
class EtcdClient::Connection {
 public:
  Connection(const EtcdAddress::Member& member, std::chrono::milliseconds patience)
      : name_(fmt::format("{}:{}", member.host, member.port)), patience_(patience), stream_(io_) {
    asio::ip::tcp::resolver resolver(io_);
    error_code error;
    const auto found = resolver.resolve(member.host, std::to_string(member.port), error);
    if (error) {
      throw EtcdUnavailable(fmt::format("{}: {}", name_, error.message()));
    }
    complete([&](auto handler) {
      stream_.async_connect(found, [handler](error_code failed, const auto&) { handler(failed); });
    });
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), error);
  }

  std::pair<unsigned, std::string> post(const std::string& path, std::string body) {
    http::request<http::string_body> request(http::verb::post, path, 11);
    request.set(http::field::host, name_);
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
    request.prepare_payload();
    complete([&](auto handler) {
      http::async_write(stream_, request,
                        [handler](error_code error, std::size_t) { handler(error); });
    });
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMostReplyBytes);
    complete([&](auto handler) {
      http::async_read(stream_, buffer_, parser,
                       [handler](error_code error, std::size_t) { handler(error); });
    });
    return {parser.get().result_int(), std::move(parser.get().body())};
  }

  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  template <typename Operation>
  void complete(Operation operation) {
    stream_.expires_after(patience_);
    error_code result = beast::error::timeout;
    operation([&result](error_code error) { result = error; });
    io_.restart();
    io_.run();
    if (result) {
      throw EtcdUnavailable(fmt::format("{}: {}", name_, result.message()));
    }
  }

  std::string name_;
  std::chrono::milliseconds patience_;
  asio::io_context io_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
};

EtcdClient::EtcdClient(const EtcdAddress& address, std::chrono::milliseconds patience)
    : address_(address), patience_(patience) {}

EtcdClient::~EtcdClient() = default;

EtcdClient::Json EtcdClient::post(const std::string& path, const Json& request) {
  const std::string body = request.dump();
  std::string failures;
  // One more attempt than members: a member may have closed an idle connection.
  for (std::size_t attempt = 0; attempt <= address_.members.size(); ++attempt) {
    try {
      if (!connection_) {
        connection_ = std::make_unique<Connection>(address_.members[member_], patience_);
      }
      const auto [status, text] = connection_->post(path, body);
      const Json reply = Json::parse(text, nullptr, false);
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
      connection_.reset();
      member_ = may_be_stale ? member_ : (member_ + 1) % address_.members.size();
    }
  }
  throw EtcdUnavailable("no member of etcd answers: " + failures);
}

std::string to_base64(std::string_view bytes) {
  namespace base64 = beast::detail::base64;
  std::string text(base64::encoded_size(bytes.size()), '\0');
  text.resize(base64::encode(text.data(), bytes.data(), bytes.size()));
  return text;
}

std::string from_base64(std::string_view text) {
  namespace base64 = beast::detail::base64;
  std::string bytes(base64::decoded_size(text.size()), '\0');
  bytes.resize(base64::decode(bytes.data(), text.data(), text.size()).first);
  return bytes;
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
