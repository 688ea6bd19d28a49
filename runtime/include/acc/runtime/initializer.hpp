// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

namespace acc {

/// A function that fills elements [offset, offset + out.size()) of a parameter or buffer. `stream`
/// selects the random numbers; it differs per parameter and seed. Values are float32; they are
/// rounded to the dtype of the model afterwards. `operator()` calls the function, a `Fill`.
class Initializer {
 public:
  using Fill = std::function<void(std::uint64_t stream, std::int64_t offset, std::span<float> out)>;

  Initializer() = default;
  /// An initialiser of the program, whose values may differ between ranks (a local file, a
  /// generator with a state). With fsdp_sync_module_states it runs on rank 0 only and all ranks
  /// receive those values; without it, each rank calls it for the elements that the rank keeps.
  template <typename Callable>
  requires(!std::same_as<Callable, Initializer> && std::constructible_from<Fill, Callable>)
      Initializer(Callable fill)  // NOLINT(google-explicit-constructor): a lambda is an initialiser
      : fill_(std::move(fill)) {}

  /// An initialiser that is a pure function of its arguments, with the same values on every rank:
  /// each rank computes the elements that it keeps and nothing is sent. The initialisers below are
  /// pure.
  static Initializer pure(Fill fill) {
    Initializer result = pure_once(std::move(fill));
    result.repeatable_ = true;
    return result;
  }
  /// As `pure`, of a function that is called only while the model is initialised.
  static Initializer pure_once(Fill fill) {
    Initializer result(std::move(fill));
    result.same_everywhere_ = true;
    return result;
  }

  void operator()(std::uint64_t stream, std::int64_t offset, std::span<float> out) const {
    fill_(stream, offset, out);
  }
  /// True for a pure initialiser.
  [[nodiscard]] bool same_everywhere() const noexcept { return same_everywhere_; }
  /// False if it may be called only while the model is initialised.
  [[nodiscard]] bool repeatable() const noexcept { return repeatable_; }
  explicit operator bool() const noexcept { return static_cast<bool>(fill_); }

 private:
  Fill fill_;
  bool same_everywhere_ = false;
  bool repeatable_ = false;
};

ACC_API Initializer zeros();                ///< 0 everywhere
ACC_API Initializer ones();                 ///< 1 everywhere
ACC_API Initializer constant(float value);  ///< `value` everywhere
/// Normal distribution with mean 0. Counter-based (Philox4x32-10): each element depends only on the
/// stream and its index.
ACC_API Initializer normal(float stddev);
/// Uniform distribution in [low, high), counter-based like `normal`.
ACC_API Initializer uniform(float low, float high);

}  // namespace acc
