// SPDX-License-Identifier: Apache-2.0
#include "server/http_session.hpp"

#include "acc/base/error.hpp"
#include "etcd/base64.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace acc::rendezvous {

namespace http = boost::beast::http;

namespace {

constexpr std::string_view kEndOfHeader = "\r\n\r\n";

// Costs (ProtocolHandler::cost): to parse a request and to find its answer, and to write a body.
constexpr unsigned kRequestCost = 32;
constexpr std::size_t kBytesPerUnit = 32;

unsigned cost_of(std::size_t body_bytes) {
  return kRequestCost + static_cast<unsigned>(body_bytes / kBytesPerUnit);
}

using Parser = http::request_parser<http::empty_body>;

/// Parses a whole header. Beast's parser reports some errors sooner or later by how the bytes
/// arrive, so it is given all of them at once. Errors: http::error, also of a request with a body.
void parse(std::string_view header, Parser& parser, boost::system::error_code& error) {
  parser.header_limit(HttpSession::kMaxRequestBytes);
  parser.put(boost::asio::buffer(header.data(), header.size()), error);
  if ((!error || error == http::error::need_more) && !parser.is_done()) {
    error = http::error::unexpected_body;
  }
}

}  // namespace

std::string token_of(std::string_view authorization) {
  constexpr std::string_view kBearer = "Bearer ";
  constexpr std::string_view kBasic = "Basic ";
  if (authorization.starts_with(kBearer)) {
    return std::string(authorization.substr(kBearer.size()));
  }
  if (authorization.starts_with(kBasic)) {
    const std::string login = from_base64(authorization.substr(kBasic.size()));
    return login.substr(std::min(login.find(':'), login.size() - 1) + 1);
  }
  return "";
}

HttpSession::HttpSession(Ask ask) : ask_(std::move(ask)) {}

bool HttpSession::step(std::string_view& bytes, std::string& out) {
  if (more_) {
    reply_further(out);
    return true;
  }
  if (is_stream_ || is_finished_) {
    bytes = {};
    return false;
  }
  const auto end = bytes.substr(0, kMaxRequestBytes).find(kEndOfHeader);
  if (end == std::string_view::npos && bytes.size() < kMaxRequestBytes) {
    return false;
  }
  Parser parser;
  boost::system::error_code error = http::error::header_limit;
  if (end != std::string_view::npos) {
    const auto header = bytes.substr(0, end + kEndOfHeader.size());
    parse(header, parser, error);
    bytes.remove_prefix(header.size());
  }
  was_active_ = true;
  has_served_ = true;
  if (error) {
    const bool is_long = error == http::error::header_limit || error == http::error::body_limit ||
                         error == http::error::unexpected_body;
    reply(is_long ? watch::refusal(413, fmt::format("a request has no body and at most {} bytes",
                                                    kMaxRequestBytes))
                  : watch::refusal(400, "malformed HTTP request: " + error.message()),
          {}, out);
    throw Error(Errc::protocol, "HTTP: " + error.message());
  }
  const auto& request = parser.get();
  const auto view = [](auto text) { return std::string_view(text.data(), text.size()); };
  const watch::Request asked{.method = view(request.method_string()),
                             .target = view(request.target()),
                             .accept = view(request[http::field::accept]),
                             .last_event_id = view(request["Last-Event-ID"]),
                             .authorization = view(request[http::field::authorization])};
  reply(ask_(asked),
        {.has_body = asked.method != "HEAD",
         .keeps_alive = request.keep_alive(),
         .has_chunks = request.version() >= 11},
        out);
  return true;
}

/// Appends the next part of the body. Without chunks the end of the connection ends it.
void HttpSession::reply_further(std::string& out) {
  std::string part;
  const bool has_more = more_(part);
  cost_ = cost_of(std::max(part.size(), watch::kPartBytes / 2));
  was_active_ = true;
  if (has_chunks_ && !part.empty()) {
    fmt::format_to(std::back_inserter(out), "{:x}\r\n{}\r\n", part.size(), part);
  } else {
    out += part;
  }
  if (!has_more) {
    more_ = nullptr;
    out += has_chunks_ ? "0\r\n\r\n" : "";
    is_finished_ = ends_after_;
  }
}

void HttpSession::reply(watch::Answer answer, const Form& form, std::string& out) {
  is_stream_ = answer.stream.has_value() && form.has_body;
  const bool is_in_parts = answer.more && !is_stream_;
  has_chunks_ = is_in_parts && form.has_chunks;
  more_ = form.has_body ? std::move(answer.more) : nullptr;
  cost_ = cost_of(answer.body.size());
  // A token is guessed at most once per connection: Peers limits further ones.
  ends_after_ =
      !form.keeps_alive || answer.status == 401 || answer.is_last || (is_in_parts && !has_chunks_);
  is_finished_ = ends_after_ && !is_stream_ && !more_;
  const auto reason = http::obsolete_reason(static_cast<http::status>(answer.status));
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", answer.status,
                 std::string_view(reason.data(), reason.size()), answer.content_type);
  if (has_chunks_) {
    out += "Transfer-Encoding: chunked\r\n";
  } else if (!is_stream_ && !is_in_parts) {
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", answer.body.size());
  }
  if (answer.status == 401) {
    out +=
        "WWW-Authenticate: Bearer\r\n"
        "WWW-Authenticate: Basic realm=\"acc-rendezvous: the password is a token\"\r\n";
  }
  if (answer.status == 405) {
    out += "Allow: GET, HEAD\r\n";
  }
  fmt::format_to(std::back_inserter(out),
                 "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
                 "Content-Security-Policy: frame-ancestors 'none'\r\n"  // the page has the rest
                 "Connection: {}\r\n\r\n",
                 ends_after_ || is_stream_ ? "close" : "keep-alive");
  if (form.has_body && has_chunks_) {
    fmt::format_to(std::back_inserter(out), "{:x}\r\n{}\r\n", answer.body.size(), answer.body);
  } else if (form.has_body) {
    out += answer.body;
  }
}

}  // namespace acc::rendezvous
