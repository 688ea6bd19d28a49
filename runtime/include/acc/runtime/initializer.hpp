#pragma once

#include "acc/base/export.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

namespace acc {

/// Fills elements [offset, offset + out.size()) of a parameter. `stream` differs per parameter and
/// seed.
class Initializer {
 public:
  using Fill = std::function<void(std::uint64_t stream, std::int64_t offset, std::span<float> out)>;

  Initializer() = default;
  /// One of the program's own, whose values may differ from rank to rank (a file of this machine, a
  /// generator with a state). With fsdp_sync_module_states rank 0's values hold on all ranks and
  /// the others are never asked; without, each rank's own hold for what it keeps.
  template <typename Callable>
  requires(!std::same_as<std::remove_cvref_t<Callable>, Initializer> &&
           std::constructible_from<Fill, Callable>)
      Initializer(
          Callable&& fill)  // NOLINT(google-explicit-constructor): a lambda is an initialiser
      : fill_(std::forward<Callable>(fill)) {}

  /// A pure function of its arguments, the same on every rank, so that each rank makes just what it
  /// keeps and nothing is sent. Those below are.
  static Initializer pure(Fill fill) {
    Initializer result(std::move(fill));
    result.same_everywhere_ = true;
    return result;
  }

  void operator()(std::uint64_t stream, std::int64_t offset, std::span<float> out) const {
    fill_(stream, offset, out);
  }
  [[nodiscard]] bool same_everywhere() const noexcept { return same_everywhere_; }
  explicit operator bool() const noexcept { return static_cast<bool>(fill_); }

 private:
  Fill fill_;
  bool same_everywhere_ = false;
};

ACC_API Initializer zeros();
ACC_API Initializer ones();
ACC_API Initializer constant(float value);
/// Gaussian with mean 0; counter-based (each element depends on stream and index alone).
ACC_API Initializer normal(float stddev);
/// Uniform in [low, high).
ACC_API Initializer uniform(float low, float high);

}  // namespace acc
