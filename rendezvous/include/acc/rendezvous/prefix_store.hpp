#pragma once

#include "acc/rendezvous/store.hpp"

namespace acc::rendezvous {

/// Another store seen through a prefix: key `k` is `prefix/k` there, joined as torch's PrefixStore
/// joins (a prefix that ends in a slash gives two). `num_keys` counts all keys of the other store.
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
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::pair<std::string, std::string>> pairs) override;
  /// The same prefix over a clone of the other store.
  std::unique_ptr<Store> clone() override;

 private:
  [[nodiscard]] std::string joined(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> joined(std::span<const std::string> keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace acc::rendezvous
