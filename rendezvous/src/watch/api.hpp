// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/board_json.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace acc::rendezvous::watch {

/// What the server says about itself in /metrics and /readyz.
struct ServerFacts {
  std::size_t num_connections = 0;
  std::size_t num_keys = 0;
  std::size_t num_watchers = 0;
  bool is_stopping = false;
  bool leads = true;  ///< false: it stands by (ServerOptions::etcd)
};

/// An HTTP request, as far as the API looks at it.
struct Request {
  std::string_view method;
  std::string_view target;
  std::string_view accept;         ///< header Accept
  std::string_view last_event_id;  ///< header Last-Event-ID
  std::string_view authorization;  ///< header Authorization
};

/// A stream of server-sent events that begins with `Answer::body`.
struct Stream {
  std::optional<Board::JobNumber> job{};  ///< empty: all jobs
};

struct Answer {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body{};  ///< or its first part
  std::optional<Stream> stream{};
  Parts more{};          ///< the parts after `body`; empty: none
  bool is_last = false;  ///< the connection ends after it
};

/// True if the request asks for the state of the server only: it is served always, and to everyone.
bool is_probe(const Request& request);
/// Answers a request (docs/api.md); `board` must outlive the answer. Never throws for a wrong
/// request: the answer has its status.
Answer answer(const Request& request, const Board& board, const ServerFacts& facts,
              Board::Time now);
/// Returns the answer to a request that cannot be served.
Answer refusal(unsigned status, std::string_view message);

/// Returns a server-sent event with a job or with an event.
std::string stream_entry(const Board::Job& job);
std::string stream_entry(const Board::Event& event);

/// Returns all metrics, in the OpenMetrics or in the older text format of Prometheus.
Parts metrics_text(const Board& board, const ServerFacts& facts, bool is_open_metrics);

}  // namespace acc::rendezvous::watch
