// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/store.hpp"

namespace acc::rendezvous {

/// A view of another store in which each key, queue and barrier `k` stands for `prefix/k`. The
/// names are joined as in PyTorch's PrefixStore: a prefix that ends in a slash gives two slashes.
/// `list_keys` returns the keys under the prefix, without it; `num_keys` counts all keys of the
/// other store.
///
/// Errors are those of the other store and contain its key names. Several PrefixStores over one
/// store count as uses of that store: one thread at a time.
class PrefixStore : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

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
  /// Returns the same prefix over a clone of the other store.
  std::unique_ptr<Store> clone() override;

 private:
  [[nodiscard]] std::string joined(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> joined(std::span<const std::string> keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace acc::rendezvous
