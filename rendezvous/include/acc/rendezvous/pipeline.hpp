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

/// Requests to a store's server that are sent together and answered in order, for one round trip in
/// all: `auto sum = batch.add("n", 1); batch.run(timeout); use(*sum);`
///
/// Nothing is sent before `run`. The pointers that the calls return are to their answers, which
/// are 0, "" or false until then, and live as long as the Pipeline. Any number of requests is
/// fine: answers are taken in while requests are still going out. See Store for what each call
/// does and refuses.
class Pipeline {
 public:
  void set(std::string_view key, std::string_view value);
  void append(std::string_view key, std::string_view value);
  void queue_push(std::string_view queue, std::string_view value);
  /// Does not wait: an absent key reads as "". (A torch server without libuv ends the connection.)
  const std::string* get(std::string_view key);
  const std::int64_t* add(std::string_view key, std::int64_t delta);
  const std::string* compare_set(std::string_view key, std::string_view expected,
                                 std::string_view desired);
  const bool* check(std::span<const std::string> keys);
  const bool* delete_key(std::string_view key);
  const std::int64_t* queue_len(std::string_view queue);

  /// Sends what was called since the last run and returns when all of it is answered; the silent
  /// calls after the last answer may still be under way. Throws as the calls of TcpStore do; the
  /// answers that came before the error are there.
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
  std::string frames_;          // encoded and not sent
  std::deque<Answer> answers_;  // of all runs; a deque leaves its elements where they are
  std::size_t answered_ = 0;
};

}  // namespace acc::rendezvous
