// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/store.hpp"

#include <cstddef>
#include <deque>
#include <variant>

namespace acc::rendezvous {

class StoreConnection;
namespace wire {
struct Request;
}

/// A batch of requests to a store server that takes one round trip in total. Replies arrive in the
/// order of the requests: `auto sum = batch.add("n", 1); batch.run(timeout); use(*sum);`
///
/// Nothing is sent before `run`. Each call returns a pointer to its reply, which is 0, "" or false
/// until `run` has received it and stays valid as long as the Pipeline. The number of requests is
/// not limited: replies are received while requests are still being sent. Store documents each call
/// and its errors.
class Pipeline {
 public:
  void set(std::string_view key, std::string_view value);
  void append(std::string_view key, std::string_view value);
  void queue_push(std::string_view queue, std::string_view value);
  /// Does not wait: a missing key reads as "". (PyTorch's server without libuv closes the
  /// connection instead.)
  const std::string* get(std::string_view key);
  const std::int64_t* add(std::string_view key, std::int64_t delta);
  const std::string* compare_set(std::string_view key, std::string_view expected,
                                 std::string_view desired);
  const bool* check(std::span<const std::string> keys);
  const bool* delete_key(std::string_view key);
  const std::int64_t* queue_len(std::string_view queue);

  /// Sends the requests added since the last run and returns when all replies have arrived.
  /// Requests without a reply (`set`, `append`, `queue_push`) after the last reply may still be in
  /// transit. Throws the same errors as TcpStore; replies that arrived before the error are valid.
  void run(Store::Milliseconds timeout);

 private:
  friend class TcpStore;
  explicit Pipeline(StoreConnection& connection) : connection_(&connection) {}

  struct Checked {
    bool present = false;
  };
  struct Deleted {
    bool was_there = false;
  };
  using Answer = std::variant<std::int64_t, std::string, Checked, Deleted>;

  void put(const wire::Request& request);
  template <typename T>
  T* expect();

  StoreConnection* connection_;
  std::string frames_;          // encoded requests that are not sent yet
  std::deque<Answer> answers_;  // replies of all runs; a deque never moves its elements
  std::size_t answered_ = 0;    // number of answers_ that have been received
};

}  // namespace acc::rendezvous
