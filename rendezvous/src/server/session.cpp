// SPDX-License-Identifier: Apache-2.0
#include "server/session.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "store/key_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace acc::rendezvous {

using wire::Opcode;

namespace {

constexpr std::size_t kLengthBytes = 8;  // length in front of each string in a reply

[[noreturn]] void violation(const std::string& message) {
  throw Error(Errc::protocol, message);
}

/// Returns the result of ADD or BARRIER. A value that is not a number ends the connection: the
/// protocol has no error replies.
template <typename T>
T number_under(std::string_view key, const std::optional<T>& result) {
  if (!result) {
    violation(fmt::format("cannot add to key '{}': its value is not a number", key));
  }
  return *result;
}

}  // namespace

bool Session::step(std::string_view& bytes, std::string& out) {
  if (!share_) {
    return serve_first(bytes, out);
  }
  const std::size_t keys = table_.values().size();
  const std::size_t used = table_.bytes();
  const bool is_served = serve_first(bytes, out);
  Peer& peer = *share_->peer;
  peer.keys += static_cast<std::int64_t>(table_.values().size() - keys);
  peer.bytes += static_cast<std::int64_t>(table_.bytes() - used);
  if (peer.keys > share_->max_keys || peer.bytes > share_->max_bytes) {
    throw Error(Errc::out_of_memory,
                fmt::format("the clients of {} have added {} keys with {} bytes; one address may "
                            "add {} keys with {} bytes (max_peer_percent)",
                            peer.name, peer.keys, peer.bytes, share_->max_keys, share_->max_bytes));
  }
  return is_served;
}

bool Session::serve_first(std::string_view& bytes, std::string& out) {
  if (bytes.empty()) {
    return false;
  }
  // Checked before the frame is complete, so that a stranger cannot make the server buffer bytes.
  if (!validated_ && bytes.front() != static_cast<char>(Opcode::validate)) {
    violation("the first command is not VALIDATE: not a TCPStore client");
  }
  // An incomplete request takes the decoder's progress with it, so that no byte is parsed twice and
  // the shared decoder is free for the next session.
  decoder_.restart();
  const bool is_complete = serve_next(bytes, begun_ ? *begun_ : decoder_, out);
  if (is_complete) {
    begun_.reset();
  } else if (decoder_.has_begun()) {
    begun_ = std::make_unique<wire::RequestDecoder>(std::move(decoder_));
  }
  return is_complete;
}

bool Session::serve_next(std::string_view& bytes, wire::RequestDecoder& decoder, std::string& out) {
  const auto request = decoder.next(bytes);
  if (!request) {
    return false;
  }
  if (request->opcode == Opcode::validate) {
    handshake(*request);
  } else {
    serve(*request, out);
    shown_ = change_shown_by(*request);
  }
  return true;
}

/// Returns the last change that the reply to a request may show. A request that only reads shows
/// the last change of its keys, so that it does not wait for the changes of others.
std::uint64_t Session::change_shown_by(const wire::RequestView& request) const {
  switch (request.opcode) {
    case Opcode::ping: return 0;
    case Opcode::get:
    case Opcode::multi_get:
    case Opcode::check:
    case Opcode::queue_len: {
      std::uint64_t last = 0;
      for (const std::string_view key : request.keys) {
        last = std::max(last, table_.last_change(key));
      }
      return last;
    }
    default: return UINT64_MAX;
  }
}

void Session::handshake(const wire::RequestView& request) {
  if (validated_) {
    violation("a second VALIDATE command");
  }
  if (request.number != wire::kMagic) {
    violation(
        fmt::format("VALIDATE with 0x{:08x}, expected 0x{:08x}", request.number, wire::kMagic));
  }
  validated_ = true;
}

void Session::serve(const wire::RequestView& request, std::string& out) {
  const auto keys = request.keys;
  const auto values = request.values;
  switch (request.opcode) {
    case Opcode::set: table_.set(keys[0], values[0]); break;
    case Opcode::compare_set:
      wire::put_bytes(out, table_.compare_set(keys[0], values[0], values[1]));
      break;
    case Opcode::add:
      wire::put_i64(out, number_under(keys[0], table_.add(keys[0], request.number)));
      break;
    case Opcode::num_keys:
      wire::put_i64(out, static_cast<std::int64_t>(table_.values().size()));
      break;
    case Opcode::delete_key: wire::put_i64(out, table_.erase(keys[0]) ? 1 : 0); break;
    case Opcode::append: table_.append(keys[0], values[0]); break;
    case Opcode::get: {
      const std::string_view value = value_of(keys[0]);
      check_reply(kLengthBytes + value.size());
      wire::put_bytes(out, value);
      break;
    }
    case Opcode::multi_get: multi_get(request, out); break;
    case Opcode::multi_set: table_.set_all(keys, values); break;
    case Opcode::ping: wire::put_u32(out, static_cast<std::uint32_t>(request.number)); break;
    case Opcode::list_keys: list_keys(out); break;
    case Opcode::queue_push:
    case Opcode::queue_pop:
    case Opcode::queue_len: serve_queue(request, out); break;
    default: serve_waiting(request, out); break;
  }
}

/// Serves CHECK, WAIT, BARRIER and CANCEL_WAIT. A wait that is not satisfied gets no reply now.
void Session::serve_waiting(const wire::RequestView& request, std::string& out) {
  switch (request.opcode) {
    case Opcode::check: out.push_back(table_.all_present(request.keys) ? 0 : 1); break;
    case Opcode::wait:
      if (table_.wait(id_, request.keys)) {
        out.push_back(wire::kReleased);
      }
      break;
    case Opcode::barrier: {
      const std::string_view key = request.keys[0];
      if (number_under(key, table_.barrier(id_, key, request.number))) {
        out.push_back(wire::kReleased);
      }
      break;
    }
    default:  // cancel_wait, the only one left
      table_.cancel(id_);
      out.push_back(wire::kCancelled);
      break;
  }
}

void Session::serve_queue(const wire::RequestView& request, std::string& out) {
  const std::string_view queue = request.keys[0];
  if (request.opcode == Opcode::queue_push) {
    table_.queue_push(queue, request.values[0]);
    return;
  }
  // The reply of QUEUE_POP begins with the length before the pop; the value follows if it was > 0.
  wire::put_i64(out, static_cast<std::int64_t>(table_.queue_size(queue)));
  if (request.opcode == Opcode::queue_pop) {
    if (const auto value = table_.queue_pop(queue)) {
      wire::put_bytes(out, *value);
    }
  }
}

/// Returns the value of a key, "" if it is missing: GET and MULTI_GET do not wait.
std::string_view Session::value_of(std::string_view key) const {
  const std::string* value = table_.find(key);
  return value != nullptr ? std::string_view(*value) : "";
}

// Replies that can be large: the size is checked before any byte is copied.

void Session::multi_get(const wire::RequestView& request, std::string& out) const {
  std::vector<std::string_view> values;
  values.reserve(request.keys.size());
  std::size_t size = 0;
  for (const std::string_view key : request.keys) {
    values.push_back(value_of(key));
    size += kLengthBytes + values.back().size();
  }
  check_reply(size);
  for (const std::string_view value : values) {
    wire::put_bytes(out, value);
  }
}

/// Lists all keys except those with the prefix kUnlistedKeys (docs/rendezvous.md).
void Session::list_keys(std::string& out) const {
  static const std::string unlisted = client_key(kUnlistedKeys);
  std::vector<std::string_view> listed;
  std::size_t size = kLengthBytes;
  for (const auto& [key, value] : table_.values()) {
    if (!key.starts_with(unlisted)) {
      listed.push_back(key);
      size += kLengthBytes + key.size();
    }
  }
  check_reply(size);
  wire::put_i64(out, static_cast<std::int64_t>(listed.size()));
  for (const std::string_view key : listed) {
    wire::put_bytes(out, key);
  }
}

void Session::check_reply(std::size_t bytes) const {
  if (bytes > decoder_.max_frame_bytes()) {
    violation(fmt::format("the reply would have more than {} bytes (max_frame_bytes)",
                          decoder_.max_frame_bytes()));
  }
}

}  // namespace acc::rendezvous
