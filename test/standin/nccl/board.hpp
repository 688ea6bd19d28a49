// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

/// Shared memory in which the ranks of a stand-in communicator exchange data; ranks may be threads
/// or processes. All zeros is a valid initial state. Each counter has one writer, its rank.
namespace standin::nccl {

inline constexpr int kMaxRanks = 16;
inline constexpr std::size_t kStageNbytes = std::size_t{16} << 10;
inline constexpr std::size_t kMaxSplits = 32;

enum class Kind : std::uint8_t { none, all_gather, reduce_scatter, all_reduce, broadcast };

/// Place of a buffer in the windows of its communicator.
struct WindowPlace {
  std::uint64_t window = 0;  ///< number of the registration in the communicator, from 1; 0: none
  std::uint64_t offset = 0;
  bool operator==(const WindowPlace&) const = default;
};

/// Parameters of a collective in which all ranks must agree.
struct Call {
  Kind kind = Kind::none;
  int dtype = 0;
  int op = 0;
  int root = 0;
  std::uint64_t count = 0;
  /// Symmetric windows of both buffers. Offsets are 0 for a buffer that peers do not access.
  WindowPlace send = {};
  WindowPlace receive = {};
  bool operator==(const Call&) const = default;
};
std::string to_string(Kind kind);
std::string to_string(const Call& call);

struct SplitChoice {
  int color;
  int key;
};

struct RankPlace {
  std::atomic<std::uint32_t> came;
  std::array<unsigned char, 16> gpu;
  std::atomic<std::uint64_t> posted;   ///< collectives that the rank has entered
  std::atomic<std::uint64_t> written;  ///< chunks written to its stage, over all collectives
  std::atomic<std::uint64_t> read;     ///< chunks that it has read from all stages
  std::atomic<std::uint64_t> splits;
  std::atomic<std::uint64_t> windows;  ///< window registrations that the rank has entered
  std::array<Call, 2> calls;           ///< by number modulo 2
  std::array<SplitChoice, kMaxSplits> choices;
  alignas(64) std::array<std::byte, kStageNbytes> stage;
};

struct Board {
  std::atomic<std::uint32_t> mapped;
  std::array<RankPlace, kMaxRanks> ranks;
};

/// A board found by name. The first rank creates it; the name is removed when all ranks have opened
/// it.
class SharedBoard {
 public:
  SharedBoard(std::string name, int size);
  ~SharedBoard();
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  /// Removes the name, also if a rank never opened the board, so that no file is left.
  void forget_name() const noexcept;
  [[nodiscard]] Board& operator*() const noexcept { return *board_; }
  [[nodiscard]] Board* operator->() const noexcept { return board_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
  Board* board_ = nullptr;
};

/// Prints "stand-in NCCL: " and the message, and aborts: the program did something that hangs or
/// corrupts data on a GPU.
[[noreturn]] void die(const std::string& message);

}  // namespace standin::nccl
