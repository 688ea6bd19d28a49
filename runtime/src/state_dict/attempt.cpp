// SPDX-License-Identifier: Apache-2.0
#include "state_dict/attempt.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>

// Ranks exchange one number to learn whether any of them failed: world_size - rank of a failed
// rank, of which the maximum identifies the lowest one. That rank then shares its message by the
// same operation, because all_reduce of doubles is the only exchange of host data that every back
// end has. Each double carries 6 bytes of text, which it represents exactly; ranks without a
// message contribute zeros, so that the maximum is the text.
namespace acc::state_dict {

namespace {

// all_reduce of host values takes up to 8 doubles per call.
constexpr std::size_t kFigures = 8;
constexpr std::size_t kFigureBytes = 6;
constexpr std::size_t kRounds = 10;

std::string words_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown reason; see the output of that rank";
  }
}

// Copies up to 480 bytes of one rank's text to every rank. `text` is "" on the other ranks.
std::string share(collectives::ProcessGroup& world, std::string text) {
  text.resize(kRounds * kFigures * kFigureBytes);
  for (std::size_t round = 0; round < kRounds; ++round) {
    char* const part = text.data() + round * kFigures * kFigureBytes;
    std::array<double, kFigures> figures{};
    for (std::size_t i = 0; i < kFigures; ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, part + i * kFigureBytes, kFigureBytes);
      figures[i] = static_cast<double>(bits);
    }
    world.all_reduce(figures, ReduceOp::max)->wait_released();
    for (std::size_t i = 0; i < kFigures; ++i) {
      const auto bits = static_cast<std::uint64_t>(figures[i]);
      std::memcpy(part + i * kFigureBytes, &bits, kFigureBytes);
    }
  }
  return text.c_str();
}

}  // namespace

std::string Attempt::reason() const {
  return words_of(failure_);
}

void Attempt::settle(const sharding::Groups& groups, const std::string& what,
                     const std::function<void()>& undo) const {
  auto& world = *groups.world;
  std::array<double, 1> failed = {failure_ ? static_cast<double>(world.size() - world.rank())
                                           : 0.0};
  // wait_released: no rank may end its groups because of the failure before all ranks have the
  // result.
  world.all_reduce(failed, ReduceOp::max)->wait_released();
  if (failed[0] == 0.0) {
    return;
  }
  if (undo) {
    undo();
  }
  // Every rank learns the reason. The launcher may kill the rank that has it as soon as another
  // rank ends.
  const int rank = world.size() - static_cast<int>(failed[0]);
  const std::string reason = share(world, world.rank() == rank ? this->reason() : std::string());
  if (failure_) {
    rethrow();
  }
  throw Error(Errc::config, fmt::format("rank {} failed in {}: {}", rank, what, reason), rank);
}

void Attempt::rethrow() const {
  try {
    std::rethrow_exception(failure_);
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(Errc::config, error.what());
  }
}

}  // namespace acc::state_dict
