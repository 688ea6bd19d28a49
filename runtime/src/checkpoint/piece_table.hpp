#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Which part of which tensor lies in which file: pure layout, no files. A tensor is a flat range
/// of elements, row-major, that ranks cut into pieces in any way.
namespace acc::checkpoint {

/// Elements [offset, offset + numel) of one tensor's values of one kind, in file number `file`.
struct StoredPiece {
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  int file = 0;

  bool operator==(const StoredPiece&) const = default;
};

/// What a stored piece gives to a request: `numel` elements, from `from` within the piece to `to`
/// within the request.
struct Overlap {
  StoredPiece piece;
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t numel = 0;
};

class PieceTable {
 public:
  /// (tensor, kind); kinds are "param", "exp_avg", "exp_avg_sq", "momentum", …
  using Key = std::pair<std::string, std::string>;

  void add(const std::string& tensor, const std::string& kind, StoredPiece piece);
  /// Empty where the pieces cover [0, numel) exactly once, else a sentence that says where not.
  [[nodiscard]] std::string cover_fault(const std::string& tensor, const std::string& kind,
                                        std::int64_t numel) const;
  /// The pieces that a request meets, in order. The table covers what is asked for.
  [[nodiscard]] std::vector<Overlap> overlaps(const std::string& tensor, const std::string& kind,
                                              std::int64_t offset, std::int64_t numel) const;
  /// In the order of their offsets; empty pieces are not kept.
  [[nodiscard]] const std::vector<StoredPiece>& pieces(const std::string& tensor,
                                                       const std::string& kind) const;
  [[nodiscard]] const std::map<Key, std::vector<StoredPiece>>& all() const noexcept {
    return pieces_;
  }

 private:
  std::map<Key, std::vector<StoredPiece>> pieces_;
};

}  // namespace acc::checkpoint
