// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/pipeline.hpp"

#include "store/key_names.hpp"
#include "store/store_connection.hpp"
#include "wire/frames.hpp"

#include <utility>

namespace acc::rendezvous {

using wire::Opcode;

/// Encodes a request. Removes the partial frame of a request that is refused (invalid_argument), so
/// that the rest of the batch stays usable.
void Pipeline::put(const wire::Request& request) {
  const std::size_t before = frames_.size();
  try {
    wire::encode(request, frames_);
  } catch (...) {
    frames_.resize(before);
    throw;
  }
}

/// Adds an empty reply of type T for the request that was encoded last.
template <typename T>
T* Pipeline::expect() {
  return &std::get<T>(answers_.emplace_back(std::in_place_type<T>));
}

void Pipeline::set(std::string_view key, std::string_view value) {
  put({.opcode = Opcode::set, .keys = {client_key(key)}, .values = {std::string(value)}});
}

void Pipeline::append(std::string_view key, std::string_view value) {
  put({.opcode = Opcode::append, .keys = {client_key(key)}, .values = {std::string(value)}});
}

void Pipeline::queue_push(std::string_view queue, std::string_view value) {
  put({.opcode = Opcode::queue_push, .keys = {client_key(queue)}, .values = {std::string(value)}});
}

const std::string* Pipeline::get(std::string_view key) {
  put({.opcode = Opcode::get, .keys = {client_key(key)}});
  return expect<std::string>();
}

const std::int64_t* Pipeline::add(std::string_view key, std::int64_t delta) {
  put({.opcode = Opcode::add, .keys = {client_key(key)}, .number = delta});
  return expect<std::int64_t>();
}

const std::string* Pipeline::compare_set(std::string_view key, std::string_view expected,
                                         std::string_view desired) {
  put({.opcode = Opcode::compare_set,
       .keys = {client_key(key)},
       .values = {std::string(expected), std::string(desired)}});
  return expect<std::string>();
}

const bool* Pipeline::check(std::span<const std::string> keys) {
  put({.opcode = Opcode::check, .keys = client_keys(keys)});
  return &expect<Checked>()->present;
}

const bool* Pipeline::delete_key(std::string_view key) {
  put({.opcode = Opcode::delete_key, .keys = {client_key(key)}});
  return &expect<Deleted>()->was_there;
}

const std::int64_t* Pipeline::queue_len(std::string_view queue) {
  put({.opcode = Opcode::queue_len, .keys = {client_key(queue)}});
  return expect<std::int64_t>();
}

namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang before 17 needs the guide

}  // namespace

void Pipeline::run(Store::Milliseconds timeout) {
  // Replies carry no id: they are matched to requests by their order. A failed run leaves answered_
  // at the first missing reply, and the closed connection refuses further runs.
  const std::string frames = std::exchange(frames_, {});
  connection_->exchange(frames, timeout, [this](ReplyReader& reader) {
    const Overloaded read{
        [&](std::int64_t& number) { number = reader.i64(); },
        [&](std::string& value) { value = reader.bytes(); },
        [&](Checked& checked) { checked.present = reader.byte() == 0; },
        [&](Deleted& deleted) { deleted.was_there = reader.i64() != 0; },
    };
    for (; answered_ < answers_.size(); ++answered_) {
      std::visit(read, answers_[answered_]);
    }
  });
}

}  // namespace acc::rendezvous
