#pragma once

#include "acc/rendezvous/store.hpp"

namespace acc::rendezvous {

/// A Store inside one process, for ranks as threads. Clones share its keys. Any thread may use any
/// of them at any time.
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
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::pair<std::string, std::string>> pairs) override;
  std::unique_ptr<Store> clone() override;

 private:
  struct State;
  explicit HashStore(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace acc::rendezvous
