// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/store.hpp"

namespace acc::rendezvous {

/// A Store in the memory of one process, for ranks that run as threads. Clones share its keys. It
/// is thread-safe: any thread may use any clone at any time. Sizes of keys and values have the same
/// limits as on a server.
class HashStore : public Store {
 public:
  HashStore();
  ~HashStore() override;

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  bool check(std::span<const std::string> keys) override;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool delete_key(std::string_view key) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys,
                                     Milliseconds timeout) override;
  void multi_set(std::span<const KeyValue> pairs) override;
  void queue_push(std::string_view queue, std::string_view value) override;
  std::string queue_pop(std::string_view queue, Milliseconds timeout) override;
  std::optional<std::string> try_queue_pop(std::string_view queue) override;
  std::int64_t queue_len(std::string_view queue) override;
  std::unique_ptr<Store> clone() override;

 private:
  struct State;
  explicit HashStore(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace acc::rendezvous
